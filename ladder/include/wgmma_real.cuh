// hopper.cuh's products for whichever of the two 16-bit types `real` is.
#pragma once

#include "hopper.cuh"
#include "portable.cuh"

// d (64, N) += a @ b.T, of 16 columns each, from shared memory; A_ACROSS, B_BLOCK: they lie across.
template <int N, bool A_ACROSS = false, int B_BLOCK = 0, bool ADD = true>
__device__ __forceinline__ void wgmma_m64k16(float (&d)[N / 2], const real* a, const real* b) {
#if defined(REAL_FLOAT16)
    wgmma_m64k16_fp16<N, A_ACROSS, B_BLOCK, ADD>(d, a, b);
#else
    wgmma_m64k16_bf16<N, A_ACROSS, B_BLOCK, ADD>(d, a, b);
#endif
}

// The same with a in registers, as mma.cuh lays out A.
template <int N, int B_BLOCK = 0>
__device__ __forceinline__ void wgmma_m64k16(float (&d)[N / 2], const unsigned (&a)[4],
                                             const real* b) {
#if defined(REAL_FLOAT16)
    wgmma_m64k16_fp16_registers<N, B_BLOCK>(d, a, b);
#else
    wgmma_m64k16_bf16_registers<N, B_BLOCK>(d, a, b);
#endif
}
