// mma.cuh for whichever of the two 16-bit types `real` is.
#pragma once

#include "mma.cuh"
#include "portable.cuh"

// d += a @ b; which lane holds what, mma.cuh says.
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4],
                                             const unsigned (&b)[2]) {
#if defined(REAL_FLOAT16)
    mma_m16n8k16_fp16(d, a, b);
#else
    mma_m16n8k16_bf16(d, a, b);
#endif
}

// Two floats, rounded to reals, in one register: `low` in its lower half.
__device__ __forceinline__ unsigned pack(float low, float high) {
#if defined(REAL_FLOAT16)
    __half2 pair = __floats2half2_rn(low, high);
#else
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
#endif
    return *reinterpret_cast<unsigned*>(&pair);
}
