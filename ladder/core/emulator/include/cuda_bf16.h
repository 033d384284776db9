// __nv_bfloat16 and __nv_bfloat162.
#pragma once
#include "emulator/narrow.h"

using __nv_bfloat16 = emulator::Narrow<emulator::Bfloat16>;
using __nv_bfloat162 = emulator::NarrowPair<emulator::Bfloat16>;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

EMULATOR_NARROW(__nv_bfloat16, __nv_bfloat162, bfloat16, bfloat162)
