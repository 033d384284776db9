// CUDA's keywords that mean nothing on a CPU, or something else.
#pragma once

// Counting mode compiles kernels with hooks before every memory access. What the emulator does
// itself on behalf of a kernel must not be counted.
#ifdef EMULATOR_COUNT
#define EMULATOR_UNCOUNTED __attribute__((no_sanitize("thread")))
#else
#define EMULATOR_UNCOUNTED
#endif

// gcc puts no hook before what a call passes by value, such as a float4: in counting mode, kernels
// have no calls of their own functions.
#if defined(EMULATOR_COUNT) && !defined(__clang__)
#define EMULATOR_FLATTEN __attribute__((flatten))
#define EMULATOR_HOOKED(NAME) __asm__("__tsan_" NAME)  // nor before what memcpy and memset do
#else
#define EMULATOR_FLATTEN
#define EMULATOR_HOOKED(NAME)
#endif

#define __global__ EMULATOR_FLATTEN
#define __device__
#define __host__
#define __constant__ static
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __grid_constant__
#define __align__(bytes) alignas(bytes)
#ifndef __clang__
#define __builtin_assume(condition) ((void)0)
#endif
#define __forceinline__ inline __attribute__((always_inline))
