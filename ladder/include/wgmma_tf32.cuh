// `wgmma` on TF32: matrix products of a warpgroup on tensor cores (sm_90a), of float32 numbers
// whose last 13 bits are not read. So the numbers should be rounded before: TMA does that for a
// rung whose header has a line `TF32:`. mma_tf32.cuh says what TF32 is; hopper.cuh, how `wgmma` is
// called.
//
// PTX ISA, "wgmma.mma_async": https://docs.nvidia.com/cuda/parallel-thread-execution/
#pragma once

#include "hopper.cuh"

#ifdef KERNEL_LADDER_EMULATOR

template <int N>
__forceinline__ void wgmma_m64k8_tf32(float (&d)[N / 2], const void *a, const void *b) {
    emulator::Wgmma wgmma{wgmma_descriptor(a, 0), wgmma_descriptor(b, 0), nullptr, N,
                          emulator::TFLOAT32, false, false, true};
    emulator::emulator_wgmma(d, N / 2, &wgmma);
}
template <int N>
__forceinline__ void wgmma_m64k8_tf32_registers(
    float (&d)[N / 2], const unsigned (&a)[4], const void *b) {
    emulator::Wgmma wgmma{0, wgmma_descriptor(b, 0), a, N, emulator::TFLOAT32, false, false, true};
    emulator::emulator_wgmma(d, N / 2, &wgmma);
}

#else

// The `wgmma` instruction on TF32 for N columns. LIST: the accumulators; A: `a` and the descriptor
// of `b` in the text; then the operands that these are: of D, and of `a`.
#define WGMMA_TF32(N, LIST, A, D, ...)                                                            \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" N "k8.f32.tf32.tf32 {" LIST "}, " A          \
                 ", 1, 1, 1;" : D : __VA_ARGS__, "l"(y))
#define WGMMA_D128 WGMMA_F32(0), WGMMA_F32(32)
#define WGMMA_D192 WGMMA_D128, WGMMA_F32(64)
#define WGMMA_D256 WGMMA_D192, WGMMA_F32(96)
#define WGMMA_TF32_OF(A128, A192, A256, ...)                                                      \
    static_assert(N == 128 || N == 192 || N == 256, "wgmma on TF32: N is 128 to 256 here");       \
    unsigned long long y = wgmma_descriptor(b, 0);                                                \
    if constexpr (N == 128) {                                                                     \
        WGMMA_TF32("128", WGMMA_R64, A128, WGMMA_D128, __VA_ARGS__);                              \
    } else if constexpr (N == 192) {                                                              \
        WGMMA_TF32("192", WGMMA_R96, A192, WGMMA_D192, __VA_ARGS__);                              \
    } else {                                                                                      \
        WGMMA_TF32("256", WGMMA_R128, A256, WGMMA_D256, __VA_ARGS__);                             \
    }

// `wgmma.mma_async` on TF32: d (64, N) += A (64, 8) * B (N, 8)^T. Both are K-major: a row of a tile
// holds 32 of the columns that are summed over, and the k-th step of 8 starts at 32 * k bytes.
// An MN-major operand exists in 16 bits only. Which thread holds which element of d: hopper.cuh.
template <int N>
__device__ __forceinline__ void wgmma_m64k8_tf32(float (&d)[N / 2], const void* a, const void* b) {
    WGMMA_TF32_OF("%64, %65", "%96, %97", "%128, %129", "l"(wgmma_descriptor(a, 0)))
}
// _registers: each warp has its 16 rows of A (64, 8) in registers, in the layout of A in mma_tf32.cuh.
template <int N>
__device__ __forceinline__ void wgmma_m64k8_tf32_registers(
    float (&d)[N / 2], const unsigned (&a)[4], const void* b) {
    WGMMA_TF32_OF("{%64, %65, %66, %67}, %68", "{%96, %97, %98, %99}, %100",
                  "{%128, %129, %130, %131}, %132", "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]))
}
#undef WGMMA_TF32_OF
#undef WGMMA_TF32

#endif
