// `wgmma` of widths that hopper.cuh lacks, for the 16-bit type that `real` is: 8 columns, the fewest
// that the instruction has, and 8 more than 128 or 192.
//
// PTX ISA, "wgmma.mma_async": https://docs.nvidia.com/cuda/parallel-thread-execution/
#pragma once

#include "hopper.cuh"
#include "portable.cuh"

#if defined(REAL_FLOAT16)
#define WGMMA_NAME wgmma_m64k16_fp16
#define WGMMA_TYPE "f16"
#else
#define WGMMA_NAME wgmma_m64k16_bf16
#define WGMMA_TYPE "bf16"
#endif

// `wgmma.mma_async`: d (64, N) += A (64, 16) * B (N, 16)^T, as wgmma_m64k16 of wgmma_real.cuh.
template <int N, bool A_MN_MAJOR = false, int B_BLOCK = 0>
__device__ __forceinline__ void wgmma_m64k16_width(float (&d)[N / 2], const real* a,
                                                   const real* b) {
    static_assert(N == 8 || N == 136 || N == 200, "wgmma: N is 8, 136 or 200 here");
#ifdef KERNEL_LADDER_EMULATOR
    WGMMA_NAME<N, A_MN_MAJOR, B_BLOCK>(d, a, b);
#else
    unsigned long long x = wgmma_descriptor(a, 0), y = wgmma_descriptor(b, B_BLOCK);
    if constexpr (N == 8) {
        WGMMA_SHARED("8", WGMMA_TYPE, "%0, %1, %2, %3", "%4, %5, 1, 1, 1, %6, %7", "+f"(d[0]),
                     "+f"(d[1]), "+f"(d[2]), "+f"(d[3]));
    } else if constexpr (N == 136) {
        WGMMA_SHARED("136", WGMMA_TYPE, WGMMA_R64 ", %64, %65, %66, %67",
                     "%68, %69, 1, 1, 1, %70, %71", WGMMA_F32(0), WGMMA_F32(32), "+f"(d[64]),
                     "+f"(d[65]), "+f"(d[66]), "+f"(d[67]));
    } else {
        WGMMA_SHARED("200", WGMMA_TYPE, WGMMA_R96 ", %96, %97, %98, %99",
                     "%100, %101, 1, 1, 1, %102, %103", WGMMA_F32(0), WGMMA_F32(32), WGMMA_F32(64),
                     "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]));
    }
#endif
}

#undef WGMMA_NAME
#undef WGMMA_TYPE
