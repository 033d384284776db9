// What every rung includes: the real type, warps, and 16-byte vectors.
//
// One source for three compilers: CUDA, HIP, and a C++ compiler with the emulator's headers.
// The build says what it compiles for:
//     -DREAL_FLOAT32 | -DREAL_FLOAT16 | -DREAL_BFLOAT16    the type of activations and weights
//     -DWARP_SIZE=32 | 64                                  lanes that run in step
// Blocks are one-dimensional and a multiple of WARP_SIZE threads long.
#pragma once

// ---- real: what is stored. Arithmetic is done in float, and rounded when it is stored. ----

#if defined(REAL_FLOAT32)
using real = float;
__device__ __forceinline__ float to_float(real x) { return x; }
__device__ __forceinline__ real to_real(float x) { return x; }

#elif defined(REAL_FLOAT16)  // 10 bits of fraction, largest value 65504: overflows to infinity
#if defined(__HIP__)
#include <hip/hip_fp16.h>
#else
#include <cuda_fp16.h>
#endif
using real = __half;
__device__ __forceinline__ float to_float(real x) { return __half2float(x); }
__device__ __forceinline__ real to_real(float x) { return __float2half(x); }

#elif defined(REAL_BFLOAT16)  // 7 bits of fraction, float32's range
#if defined(__HIP__)
#include <hip/hip_bf16.h>
using real = __hip_bfloat16;
#else
#include <cuda_bf16.h>
using real = __nv_bfloat16;
#endif
// A bfloat16 is the upper half of a float32. Said with shifts rather than __bfloat162float, the
// compiler converts either half of a register in one instruction, not two.
__device__ __forceinline__ float to_float(real x) {
    return __int_as_float(*reinterpret_cast<const unsigned short*>(&x) << 16);
}
__device__ __forceinline__ real to_real(float x) { return __float2bfloat16(x); }

#else
#error "define REAL_FLOAT32, REAL_FLOAT16 or REAL_BFLOAT16"
#endif

#ifndef INFINITY  // NVRTC has no <math.h>
#define INFINITY __int_as_float(0x7f800000)
#endif

// ---- warps ----

__device__ __forceinline__ int lane_id() { return threadIdx.x % WARP_SIZE; }
__device__ __forceinline__ int warp_id() { return threadIdx.x / WARP_SIZE; }  // within the block

// Names the lanes that take part in a shuffle: all of them.
constexpr unsigned long long FULL_WARP = ~0ull >> (64 - WARP_SIZE);

// The `value` of the lane whose number differs from this one's in the bits of `distance`.
// All lanes of the warp must call it together.
__device__ __forceinline__ float shuffle_xor(float value, int distance) {
#if defined(__HIP__)
    return __shfl_xor(value, distance);
#else
    return __shfl_xor_sync(FULL_WARP, value, distance);
#endif
}

// The `value`, which all lanes of the warp have, in a way that the compiler knows: what follows
// from it can then be computed once for the warp, and not in every lane. All lanes must call it
// together.
__device__ __forceinline__ int warp_uniform(int value) {
#if defined(__HIP__)
    return __builtin_amdgcn_readfirstlane(value);
#else
    return __shfl_sync(FULL_WARP, value, 0);
#endif
}

// The sum over the warp's lanes, given to all of them: a butterfly of log2(WARP_SIZE) exchanges.
// Its order is fixed, and every lane gets the same bits.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int distance = WARP_SIZE / 2; distance > 0; distance /= 2) {
        value += shuffle_xor(value, distance);
    }
    return value;
}

// The maximum over the warp's lanes, given to all of them.
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int distance = WARP_SIZE / 2; distance > 0; distance /= 2) {
        value = fmaxf(value, shuffle_xor(value, distance));
    }
    return value;
}

// ---- 16-byte vectors: the widest access that one lane can make with one instruction ----

constexpr int VECTOR = 16 / sizeof(real);  // reals in a Vec: 4 or 8

struct alignas(16) Vec {
    real at[VECTOR];
    __device__ __forceinline__ real& operator[](int k) { return at[k]; }
    __device__ __forceinline__ const real& operator[](int k) const { return at[k]; }
};

// `address` must be a multiple of 16 bytes. The detour through uint4 makes the compiler emit one
// 16-byte access; a copy of the struct may become VECTOR small ones.
__device__ __forceinline__ Vec load_vec(const real* address) {
    Vec v;
    *reinterpret_cast<uint4*>(&v) = *reinterpret_cast<const uint4*>(address);
    return v;
}

__device__ __forceinline__ void store_vec(real* address, const Vec& v) {
    *reinterpret_cast<uint4*>(address) = *reinterpret_cast<const uint4*>(&v);
}

// The same for data that is touched once: marked to leave the caches first ("streaming").
__device__ __forceinline__ Vec load_vec_streaming(const real* address) {
#if defined(__HIP__)
    return load_vec(address);
#else
    Vec v;
    *reinterpret_cast<uint4*>(&v) = __ldcs(reinterpret_cast<const uint4*>(address));
    return v;
#endif
}

__device__ __forceinline__ void store_vec_streaming(real* address, const Vec& v) {
#if defined(__HIP__)
    store_vec(address, v);
#else
    __stcs(reinterpret_cast<uint4*>(address), *reinterpret_cast<const uint4*>(&v));
#endif
}
