// What all layers share: the storage type `real`, warp operations, vectorized (128-bit) accesses.
//
// One source for three compilers: CUDA, HIP, and a C++ compiler with the emulator's headers.
// The build defines what it compiles for:
//     -DREAL_FLOAT32 | -DREAL_FLOAT16 | -DREAL_BFLOAT16    the type of activations and weights
//     -DWARP_SIZE=32 | 64                                  threads of a warp: its lanes
// Blocks are one-dimensional, and their size is a multiple of WARP_SIZE.
#pragma once

// ---- real: the type in which activations and weights are stored ----
//
// Kernels compute in float32. to_float converts what was loaded; it is exact. to_real converts what
// is to be stored; it rounds to the nearest value, and to the even one of two that are equally
// near.

#if defined(REAL_FLOAT32)
using real = float;
__device__ __forceinline__ float to_float(real x) { return x; }
__device__ __forceinline__ real to_real(float x) { return x; }

#elif defined(REAL_FLOAT16)  // 10 fraction bits; above 65504 it overflows to infinity
#if defined(__HIP__)
#include <hip/hip_fp16.h>
#else
#include <cuda_fp16.h>
#endif
using real = __half;
__device__ __forceinline__ float to_float(real x) { return __half2float(x); }
__device__ __forceinline__ real to_real(float x) { return __float2half(x); }

#elif defined(REAL_BFLOAT16)  // 7 fraction bits; the range of float32
#if defined(__HIP__)
#include <hip/hip_bf16.h>
using real = __hip_bfloat16;
#else
#include <cuda_bf16.h>
using real = __nv_bfloat16;
#endif
// A bfloat16 is the upper half of a float32. With a shift instead of __bfloat162float, the compiler
// converts either half of a register in one instruction instead of two.
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

// ---- warps: groups of WARP_SIZE threads (lanes) that the GPU schedules together ----
//
// The lanes usually execute the same instruction, but since Volta they may run apart. Only
// __syncwarp, or a function whose name ends in _sync (the shuffles below), makes them meet.

// The index of this thread in its warp, and of its warp in the block.
__device__ __forceinline__ int lane_id() { return threadIdx.x % WARP_SIZE; }
__device__ __forceinline__ int warp_id() { return threadIdx.x / WARP_SIZE; }

// The mask of the lanes that take part in a shuffle: one bit for each, all of them set.
constexpr unsigned long long FULL_WARP = ~0ull >> (64 - WARP_SIZE);

// Butterfly shuffle (`shfl.sync.bfly`): returns the `value` of lane `lane_id() ^ distance`. A
// shuffle reads another lane's register, without shared memory and without a barrier. All lanes of
// the warp must call it together: what a missing lane would hand over is undefined.
__device__ __forceinline__ float shuffle_xor(float value, int distance) {
#if defined(__HIP__)
    return __shfl_xor(value, distance);
#else
    return __shfl_xor_sync(FULL_WARP, value, distance);
#endif
}

// Broadcast from lane 0 (`shfl.sync.idx`). All lanes already hold the same `value`, but the
// compiler cannot prove it. After the broadcast it can: it may keep the value in a uniform
// register, one for the whole warp, and compute what depends on it once per warp instead of once
// per lane. All lanes of the warp must call it together.
__device__ __forceinline__ int warp_uniform(int value) {
#if defined(__HIP__)
    return __builtin_amdgcn_readfirstlane(value);
#else
    return __shfl_sync(FULL_WARP, value, 0);
#endif
}

// Warp shuffle reduction: the sum over the lanes of the warp, returned to each of them, in
// log2(WARP_SIZE) butterfly shuffles. The order of the additions is fixed, and every lane gets the
// same bits. All lanes must call it together.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int distance = WARP_SIZE / 2; distance > 0; distance /= 2) {
        value += shuffle_xor(value, distance);
    }
    return value;
}

// The maximum over the lanes of the warp, by the same butterfly. All lanes must call it together.
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int distance = WARP_SIZE / 2; distance > 0; distance /= 2) {
        value = fmaxf(value, shuffle_xor(value, distance));
    }
    return value;
}

// ---- vectorized (128-bit) accesses: 16 bytes, the most that a lane moves per instruction ----

constexpr int VECTOR = 16 / sizeof(real);  // elements in a Vec: 4 in float32, 8 in 16 bits

// VECTOR neighbouring elements.
struct alignas(16) Vec {
    real at[VECTOR];
    __device__ __forceinline__ real& operator[](int k) { return at[k]; }
    __device__ __forceinline__ const real& operator[](int k) const { return at[k]; }
};

// One 128-bit load (`ld.global.v4`). `address` must be a multiple of 16 bytes; otherwise the
// access faults. Read as uint4, it becomes one instruction; a copy of the struct may become VECTOR
// small ones.
__device__ __forceinline__ Vec load_vec(const real* address) {
    Vec v;
    *reinterpret_cast<uint4*>(&v) = *reinterpret_cast<const uint4*>(address);
    return v;
}

// One 128-bit store (`st.global.v4`); `address` must be a multiple of 16 bytes here, too.
__device__ __forceinline__ void store_vec(real* address, const Vec& v) {
    *reinterpret_cast<uint4*>(address) = *reinterpret_cast<const uint4*>(&v);
}

// The same with the streaming cache hint (`ld.global.cs`): the caches evict these lines first. For
// data that no kernel reads again soon.
__device__ __forceinline__ Vec load_vec_streaming(const real* address) {
#if defined(__HIP__)
    return load_vec(address);
#else
    Vec v;
    *reinterpret_cast<uint4*>(&v) = __ldcs(reinterpret_cast<const uint4*>(address));
    return v;
#endif
}

// The same with the streaming cache hint (`st.global.cs`).
__device__ __forceinline__ void store_vec_streaming(real* address, const Vec& v) {
#if defined(__HIP__)
    store_vec(address, v);
#else
    __stcs(reinterpret_cast<uint4*>(address), *reinterpret_cast<const uint4*>(&v));
#endif
}
