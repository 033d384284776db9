// float4, uint2 and their kin: plain structs with CUDA's sizes and alignments.
#pragma once
#include "emulator/qualifiers.h"

namespace emulator {
// A vector is aligned to its size when that is 2, 4, 8 or 16 bytes, else as its elements are.
constexpr int vector_alignment(int bytes, int element) {
    return (bytes & (bytes - 1)) ? element : bytes > 16 ? 16 : bytes;
}
}  // namespace emulator

#define EMULATOR_VECTORS(T, NAME)                                                              \
    struct NAME##1 {                                                                           \
        T x;                                                                                   \
    };                                                                                         \
    struct alignas(emulator::vector_alignment(2 * sizeof(T), sizeof(T))) NAME##2 {             \
        T x, y;                                                                                \
    };                                                                                         \
    struct NAME##3 {                                                                           \
        T x, y, z;                                                                             \
    };                                                                                         \
    struct alignas(emulator::vector_alignment(4 * sizeof(T), sizeof(T))) NAME##4 {             \
        T x, y, z, w;                                                                          \
    };                                                                                         \
    __forceinline__ NAME##1 make_##NAME##1(T x) { return {x}; }                                \
    __forceinline__ NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }                        \
    __forceinline__ NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; }                \
    __forceinline__ NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }

EMULATOR_VECTORS(unsigned, uint)
EMULATOR_VECTORS(int, int)
EMULATOR_VECTORS(float, float)
EMULATOR_VECTORS(double, double)
EMULATOR_VECTORS(signed char, char)
EMULATOR_VECTORS(unsigned char, uchar)
EMULATOR_VECTORS(short, short)
EMULATOR_VECTORS(unsigned short, ushort)
EMULATOR_VECTORS(long long, longlong)
EMULATOR_VECTORS(unsigned long long, ulonglong)
#undef EMULATOR_VECTORS
