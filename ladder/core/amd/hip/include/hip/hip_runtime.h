// What the rungs use of HIP, on clang's builtins alone: ROCm, its headers and its device libraries
// are not needed. ladder/core/amd/hip/compiler.py includes this file before every rung.
//
// HIP's own headers: https://github.com/ROCm/rocm-systems/tree/develop/projects/clr/hipamd/include
// The builtins: https://clang.llvm.org/docs/AMDGPUSupport.html and
// https://llvm.org/docs/AMDGPUUsage.html#llvm-ir-intrinsics
#pragma once

// ---- keywords ----

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n) __attribute__((aligned(n)))
// CUDA's second number, of blocks on an SM, is left out: HIP's own means waves of a SIMD.
#define __launch_bounds__(threads, ...) __attribute__((amdgpu_flat_work_group_size(1, threads)))

using size_t = decltype(sizeof 0);
using uint16_t = unsigned short;
using uint32_t = unsigned;
using uint64_t = unsigned long;

// ---- vectors ----

struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };

__device__ __forceinline__ float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}
__device__ __forceinline__ uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    return {x, y, z, w};
}

// ---- where a thread is: threadIdx.x becomes a call of get_x() (clang's -fdeclspec) ----

#define HIP_INDEX(NAME, X, Y, Z)                                        \
    struct NAME##_t {                                                   \
        __device__ __forceinline__ unsigned get_x() const { return X; } \
        __device__ __forceinline__ unsigned get_y() const { return Y; } \
        __device__ __forceinline__ unsigned get_z() const { return Z; } \
        __declspec(property(get = get_x)) unsigned x;                   \
        __declspec(property(get = get_y)) unsigned y;                   \
        __declspec(property(get = get_z)) unsigned z;                   \
    };                                                                  \
    extern const __device__ __attribute__((weak)) NAME##_t NAME;
// The runtime passes the numbers of blocks behind the kernel's own arguments.
#define HIP_HIDDEN_ARGUMENT(i) \
    (((const unsigned __attribute__((address_space(4)))*)__builtin_amdgcn_implicitarg_ptr())[i])

HIP_INDEX(
    threadIdx,
    __builtin_amdgcn_workitem_id_x(),
    __builtin_amdgcn_workitem_id_y(),
    __builtin_amdgcn_workitem_id_z())
HIP_INDEX(
    blockIdx,
    __builtin_amdgcn_workgroup_id_x(),
    __builtin_amdgcn_workgroup_id_y(),
    __builtin_amdgcn_workgroup_id_z())
HIP_INDEX(
    blockDim,
    __builtin_amdgcn_workgroup_size_x(),
    __builtin_amdgcn_workgroup_size_y(),
    __builtin_amdgcn_workgroup_size_z())
HIP_INDEX(gridDim, HIP_HIDDEN_ARGUMENT(0), HIP_HIDDEN_ARGUMENT(1), HIP_HIDDEN_ARGUMENT(2))
#undef HIP_INDEX

// ---- barriers ----

// The fences make what was written before the barrier visible to the block after it: `s_barrier`
// alone orders no memory.
__device__ __forceinline__ void __syncthreads() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// The lanes of a wave run in lockstep, so that only the compiler has to be kept from moving
// accesses across it; no instruction waits.
__device__ __forceinline__ void __syncwarp() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
    __builtin_amdgcn_wave_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

__device__ __forceinline__ void __threadfence() {
    __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent");
}

// ---- atomics ----

template <typename T>
__device__ __forceinline__ T atomicAdd(T* address, T value) {
    return __hip_atomic_fetch_add(address, value, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
}

// ---- bits, and exchange between lanes ----

__device__ __forceinline__ int __float_as_int(float x) { return __builtin_bit_cast(int, x); }
__device__ __forceinline__ unsigned __float_as_uint(float x) {
    return __builtin_bit_cast(unsigned, x);
}
__device__ __forceinline__ float __uint_as_float(unsigned x) {
    return __builtin_bit_cast(float, x);
}
__device__ __forceinline__ float __int_as_float(int x) { return __builtin_bit_cast(float, x); }

// `ds_bpermute_b32` takes the lane times 4: it goes through the LDS's crossbar, by addresses.
__device__ __forceinline__ float __shfl_xor(float value, int distance) {
    int lane = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
    int other = (lane ^ distance) << 2;
    return __int_as_float(__builtin_amdgcn_ds_bpermute(other, __float_as_int(value)));
}

__device__ __forceinline__ int min(int a, int b) { return a < b ? a : b; }
__device__ __forceinline__ int max(int a, int b) { return a > b ? a : b; }

#include "hip_math.h"
