// __nv_bfloat16 and __nv_bfloat162.
#pragma once
#include "emulator/narrow.h"

using __nv_bfloat16 = emulator::Narrow<emulator::Bfloat16>;
using __nv_bfloat162 = emulator::NarrowPair<emulator::Bfloat16>;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

EMULATOR_NARROW(__nv_bfloat16, __nv_bfloat162, bfloat16, bfloat162)
__forceinline__ __nv_bfloat162 make_bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
__forceinline__ __nv_bfloat16 __ushort_as_bfloat16(unsigned short bits) {
    return emulator::narrow_from_bits<emulator::Bfloat16>(bits);
}
__forceinline__ __nv_bfloat16 __short_as_bfloat16(short bits) {
    return __ushort_as_bfloat16((uint16_t)bits);
}
