// WMMA: matrix products of a wave of 32 on RDNA's matrix cores (RDNA 3 and 4).
//
// wmma computes D (16, 16) += A (16, 16) * B (16, 16)^T. A and B are rows of 16-bit elements, two
// in a register, D is float32. With r = l % 16 and g = l / 16, lane l holds
//                RDNA 3                                   RDNA 4
//     a, b       all 16 elements of row r: lanes l and    8 neighbours of row r, from k = 8g on
//                l + 16 hold the same
//     d[i]       D[2i + g][r]                             D[8g + i][r]
//
// All lanes of the wave must call it together.
//
// RDNA 3 ISA, "Wave Matrix Multiply Accumulate":
// https://docs.amd.com/v/u/en-US/rdna3-shader-instruction-set-architecture-feb-2023_0
// RDNA 4 ISA, of the same name: https://docs.amd.com/v/u/en-US/rdna4-instruction-set-architecture
// AMD Matrix Instruction Calculator: https://github.com/ROCm/amd_matrix_instruction_calculator
#pragma once
#include "portable.cuh"

// The emulator has RDNA 4's layout, unless the kernel asks for the other.
#if defined(__GFX11__)
#define RDNA 3
#elif !defined(RDNA)
#define RDNA 4
#endif

constexpr int WMMA_REGISTERS = RDNA == 3 ? 8 : 4;  // of a lane for A, and as many for B

#ifdef KERNEL_LADDER_EMULATOR
#include "matrix_core_cpu.h"

__device__ __forceinline__ void wmma(float (&d)[8], const unsigned (&a)[WMMA_REGISTERS],
                                     const unsigned (&b)[WMMA_REGISTERS]) {
    emulator::matrix_core<16, 16, 2 * WMMA_REGISTERS>(
        d, a, b, [](int i, int g) { return RDNA == 3 ? 2 * i + g : 8 * g + i; });
}

#else

template <class T, int COUNT>
using Registers = T __attribute__((ext_vector_type(COUNT)));

// `v_wmma_f32_16x16x16`: D += A @ B^T, accumulated in float32.
__device__ __forceinline__ void wmma(float (&d)[8], const unsigned (&a)[WMMA_REGISTERS],
                                     const unsigned (&b)[WMMA_REGISTERS]) {
#if defined(REAL_FLOAT16)
    using Wmma = Registers<_Float16, 2 * WMMA_REGISTERS>;
#else
    using Wmma = Registers<short, 2 * WMMA_REGISTERS>;
#endif
    auto x = __builtin_bit_cast(Wmma, a), y = __builtin_bit_cast(Wmma, b);
    Registers<float, 8> sums;
    for (int i = 0; i < 8; i++) sums[i] = d[i];
#if RDNA == 3 && defined(REAL_FLOAT16)
    sums = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(x, y, sums);
#elif RDNA == 3
    sums = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(x, y, sums);
#elif defined(REAL_FLOAT16)
    sums = __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(x, y, sums);
#else
    sums = __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(x, y, sums);
#endif
    for (int i = 0; i < 8; i++) d[i] = sums[i];
}

#endif
