// __half and half2.
#pragma once
#include "emulator/narrow.h"

using __half = emulator::Narrow<emulator::Half>;
using __half2 = emulator::NarrowPair<emulator::Half>;
using half = __half;
using half2 = __half2;

EMULATOR_NARROW(__half, __half2, half, half2)
