// The `wgmma` functions of hopper.cuh for the 16-bit type that `real` is: bfloat16 or float16.
#pragma once

#include "hopper.cuh"
#include "portable.cuh"

// d (64, N) += a @ b.T, 16 columns of each, from shared memory. By default both are K-major: a row
// holds the columns that are summed over. A_MN_MAJOR, B_BLOCK: a, b is transposed (MN-major).
template <int N, bool A_MN_MAJOR = false, int B_BLOCK = 0, bool ADD = true>
__device__ __forceinline__ void wgmma_m64k16(float (&d)[N / 2], const real* a, const real* b) {
#if defined(REAL_FLOAT16)
    wgmma_m64k16_fp16<N, A_MN_MAJOR, B_BLOCK, ADD>(d, a, b);
#else
    wgmma_m64k16_bf16<N, A_MN_MAJOR, B_BLOCK, ADD>(d, a, b);
#endif
}

// The same with a in registers, in the layout of A in mma.cuh.
template <int N, int B_BLOCK = 0>
__device__ __forceinline__ void wgmma_m64k16(float (&d)[N / 2], const unsigned (&a)[4],
                                             const real* b) {
#if defined(REAL_FLOAT16)
    wgmma_m64k16_fp16_registers<N, B_BLOCK>(d, a, b);
#else
    wgmma_m64k16_bf16_registers<N, B_BLOCK>(d, a, b);
#endif
}
