// __half and half2.
#pragma once
#include "emulator/narrow.h"

using __half = emulator::Narrow<emulator::Half>;
using __half2 = emulator::NarrowPair<emulator::Half>;
using half = __half;
using half2 = __half2;

EMULATOR_NARROW(__half, __half2, half, half2)
__forceinline__ __half2 make_half2(__half x, __half y) { return {x, y}; }
__forceinline__ __half __ushort_as_half(unsigned short bits) {
    return emulator::narrow_from_bits<emulator::Half>(bits);
}
__forceinline__ __half __short_as_half(short bits) { return __ushort_as_half((uint16_t)bits); }
