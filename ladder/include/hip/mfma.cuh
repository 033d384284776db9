// MFMA: matrix products of a wave of 64 on CDNA's matrix cores (gfx90a and later). The rung
// defines SIDE, the rows and columns of a product: 16 or 32.
//
// mfma computes D (SIDE, SIDE) += A (SIDE, 256 / SIDE) * B (SIDE, 256 / SIDE)^T. A and B are rows
// of 16-bit elements, two in a register, D is float32. With r = l % SIDE and g = l / SIDE, lane l
// holds
//     a, b     four neighbours of row r, from k = 4g on
//     d[i]     D[i / 4 * (256 / SIDE) + 4g + i % 4][r], i < SIDE * SIDE / 64
//
// mfma_wide computes two such products: each lane holds eight neighbours of a row, from k = 8g on.
// The first product takes the first four of every lane, the second the last four. So k comes out of
// order, but in the same order in A and in B, and the sum is the same. On gfx950 it is one
// instruction, 512 / SIDE deep.
//
// All lanes of the wave must call these functions together.
//
// AMD Instinct MI300 ISA, "Matrix Arithmetic Instructions":
// https://docs.amd.com/v/u/en-US/amd-instinct-mi300-cdna3-instruction-set-architecture
// AMD Matrix Instruction Calculator: https://github.com/ROCm/amd_matrix_instruction_calculator
#pragma once
#include "portable.cuh"

constexpr int MFMA_SUMS = SIDE * SIDE / 64;  // elements of D in a lane

#ifdef KERNEL_LADDER_EMULATOR
#include "matrix_core_cpu.h"

__device__ __forceinline__ void mfma(float (&d)[MFMA_SUMS], uint2 a, uint2 b) {
    emulator::matrix_core<SIDE, 256 / SIDE, 4>(
        d, &a, &b, [](int i, int g) { return i / 4 * (256 / SIDE) + 4 * g + i % 4; });
}

#else

template <class T, int COUNT>
using Registers = T __attribute__((ext_vector_type(COUNT)));

#if defined(REAL_FLOAT16)
using Mfma = Registers<_Float16, 4>;
#define MFMA_16 __builtin_amdgcn_mfma_f32_16x16x16f16
#define MFMA_32 __builtin_amdgcn_mfma_f32_32x32x8f16
using MfmaWide = Registers<_Float16, 8>;
#define MFMA_WIDE_16 __builtin_amdgcn_mfma_f32_16x16x32_f16
#define MFMA_WIDE_32 __builtin_amdgcn_mfma_f32_32x32x16_f16
#else
using Mfma = Registers<short, 4>;
#define MFMA_16 __builtin_amdgcn_mfma_f32_16x16x16bf16_1k
#define MFMA_32 __builtin_amdgcn_mfma_f32_32x32x8bf16_1k
using MfmaWide = Registers<__bf16, 8>;
#define MFMA_WIDE_16 __builtin_amdgcn_mfma_f32_16x16x32_bf16
#define MFMA_WIDE_32 __builtin_amdgcn_mfma_f32_32x32x16_bf16
#endif

// The instruction for 16 x 16 or for 32 x 32, on factors of type T.
#define MFMA(NAME, PARAMETER, T, INSTRUCTION)                                                     \
    __device__ __forceinline__ void NAME(float (&d)[MFMA_SUMS], PARAMETER a, PARAMETER b) {       \
        Registers<float, MFMA_SUMS> sums;                                                         \
        for (int i = 0; i < MFMA_SUMS; i++) sums[i] = d[i];                                       \
        sums = INSTRUCTION(__builtin_bit_cast(T, a), __builtin_bit_cast(T, b), sums, 0, 0, 0);    \
        for (int i = 0; i < MFMA_SUMS; i++) d[i] = sums[i];                                       \
    }
#if SIDE == 16
MFMA(mfma, uint2, Mfma, MFMA_16)
#else
MFMA(mfma, uint2, Mfma, MFMA_32)
#endif

#endif

#if !defined(__gfx950__)
__device__ __forceinline__ void mfma_wide(float (&d)[MFMA_SUMS], uint4 a, uint4 b) {
    mfma(d, {a.x, a.y}, {b.x, b.y});
    mfma(d, {a.z, a.w}, {b.z, b.w});
}
#elif SIDE == 16
MFMA(mfma_wide, uint4, MfmaWide, MFMA_WIDE_16)
#else
MFMA(mfma_wide, uint4, MfmaWide, MFMA_WIDE_32)
#endif
