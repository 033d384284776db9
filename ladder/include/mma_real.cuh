// mma.cuh for the 16-bit type that `real` is: bfloat16 or float16.
#pragma once

#include "mma.cuh"
#include "portable.cuh"

// `mma.sync`: d += a @ b. mma.cuh says which elements each lane holds.
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4],
                                             const unsigned (&b)[2]) {
#if defined(REAL_FLOAT16)
    mma_m16n8k16_fp16(d, a, b);
#else
    mma_m16n8k16_bf16(d, a, b);
#endif
}

// Rounds two floats to real and packs them into one register, `low` in its lower half.
__device__ __forceinline__ unsigned pack(float low, float high) {
#if defined(REAL_FLOAT16)
    __half2 pair = __floats2half2_rn(low, high);
#else
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
#endif
    return *reinterpret_cast<unsigned*>(&pair);
}

// The two numbers of a packed pair.
__device__ __forceinline__ float low_of(unsigned pair) {
#if defined(REAL_FLOAT16)
    return __low2float(*reinterpret_cast<__half2*>(&pair));
#else
    return __uint_as_float(pair << 16);
#endif
}
__device__ __forceinline__ float high_of(unsigned pair) {
#if defined(REAL_FLOAT16)
    return __high2float(*reinterpret_cast<__half2*>(&pair));
#else
    return __uint_as_float(pair & 0xffff0000);
#endif
}

// The accumulators d (64, N) of one `wgmma`, rounded, are the factors a (64, N) of the next: the
// layouts are the same. 16 columns in each a[i].
template <int N>
__device__ __forceinline__ void wgmma_factors(unsigned (&a)[N / 8][4], const float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        a[i / 4][i % 4] = pack(d[2 * i], d[2 * i + 1]);
    }
}
