// `mma.sync` and `ldmatrix`: matrix products of a warp on tensor cores, the units that multiply
// small matrices, with a register layout that the kernel controls (sm_80 and later).
//
// mma_m16n8k16 computes D (16, 8) += A (16, 16) * B (16, 8). Each lane holds a part of each matrix
// in registers, a fragment. Two neighbouring 16-bit elements share a register, the one with the
// smaller index in its low half. Lane l holds, with g = l / 4 and t = l % 4:
//     a[0] = A[g][2t..]      a[1] = A[g + 8][2t..]      a[2] = A[g][2t + 8..]  a[3] = A[g + 8][2t + 8..]
//     b[0] = B[2t..][g]      b[1] = B[2t + 8..][g]
//     d[0], d[1] = D[g][2t], D[g][2t + 1]               d[2], d[3] = D[g + 8][2t], D[g + 8][2t + 1]
//
// ldmatrix_x4 loads four 8 x 8 matrices of 16-bit elements from shared memory into such fragments.
// Lane l passes the address of row l % 8 of matrix l / 8 (16 bytes, 16-byte aligned), and receives
// in r[i] the elements [g][2t] and [g][2t + 1] of matrix i. _trans: of its transpose. _x2 loads two
// matrices, with the addresses of lanes 0 to 15. Eight rows whose addresses are a multiple of 128
// bytes apart lie in the same banks (a bank conflict), so tiles are padded or swizzled.
// stmatrix_x4 stores what ldmatrix_x4 would load, with the same addresses (sm_90 and later).
//
// All lanes of the warp must call these functions together. The tile must be complete in shared
// memory: a barrier lies between the threads that write it and ldmatrix.
//
// PTX ISA, "mma.sync", "ldmatrix", "stmatrix":
// https://docs.nvidia.com/cuda/parallel-thread-execution/
#pragma once

#ifdef KERNEL_LADDER_EMULATOR
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace emulator {

template <class Format>
__device__ __noinline__ EMULATOR_UNCOUNTED void mma(
    float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    struct Registers {
        const unsigned *a, *b;
    } mine{a, b};
    Registers *const *lanes = show(&mine);
    auto element = [](unsigned pair, int which) {
        return Format::widen((uint16_t)(which ? pair >> 16 : pair));
    };
    int g = current.thread->lane / 4, t = current.thread->lane % 4;
    for (int i = 0; i < 4; i++) {
        int row = g + i / 2 * 8, column = 2 * t + i % 2;
        float sum = d[i];
        for (int k = 0; k < 16; k++) {
            int pair = k % 8 / 2;
            unsigned x = lanes[row % 8 * 4 + pair]->a[row / 8 + k / 8 * 2];
            unsigned y = lanes[column * 4 + pair]->b[k / 8];
            sum += element(x, k % 2) * element(y, k % 2);
        }
        d[i] = sum;
    }
    emulator_warp(WARP_SYNC, ~0ull, 0, 0);  // all lanes have read the others' registers
}

template <int COUNT>
__device__ __forceinline__ void ldmatrix(unsigned (&r)[COUNT], const void *row, bool transposed) {
    uint4 mine = {};
    int lane = current.thread->lane, g = lane / 4, t = lane % 4;
    if (lane < 8 * COUNT) mine = *(const uint4 *)row;
    uint4 *const *rows = show(&mine);
    for (int i = 0; i < COUNT; i++) {
        auto element = [&](int y, int x) -> unsigned {
            uint16_t value;
            __builtin_memcpy(&value, (const char *)rows[8 * i + y] + 2 * x, 2);
            return value;
        };
        r[i] = transposed ? element(2 * t, g) | element(2 * t + 1, g) << 16
                          : element(g, 2 * t) | element(g, 2 * t + 1) << 16;
    }
    emulator_warp(WARP_SYNC, ~0ull, 0, 0);
}

// The row that this lane stores: four lanes have two elements each.
__device__ __noinline__ EMULATOR_UNCOUNTED uint4 matrix_row(const unsigned (&r)[4]) {
    const unsigned *const *lanes = show(&r[0]);
    int matrix = current.thread->lane / 8, first = current.thread->lane % 8 * 4;
    uint4 row{lanes[first][matrix], lanes[first + 1][matrix], lanes[first + 2][matrix],
              lanes[first + 3][matrix]};
    emulator_warp(WARP_SYNC, ~0ull, 0, 0);  // all lanes have read the others' registers
    return row;
}

}  // namespace emulator

__device__ __forceinline__ void mma_m16n8k16_bf16(
    float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    emulator::mma<emulator::Bfloat16>(d, a, b);
}
__device__ __forceinline__ void mma_m16n8k16_fp16(
    float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    emulator::mma<emulator::Half>(d, a, b);
}
__device__ __forceinline__ void ldmatrix_x4(unsigned (&r)[4], const void* row) {
    emulator::ldmatrix(r, row, false);
}
__device__ __forceinline__ void ldmatrix_x2(unsigned (&r)[2], const void* row) {
    emulator::ldmatrix(r, row, false);
}
__device__ __forceinline__ void ldmatrix_x4_trans(unsigned (&r)[4], const void* row) {
    emulator::ldmatrix(r, row, true);
}
__device__ __forceinline__ void ldmatrix_x2_trans(unsigned (&r)[2], const void* row) {
    emulator::ldmatrix(r, row, true);
}
__device__ __forceinline__ void stmatrix_x4(void* row, const unsigned (&r)[4]) {
    uint4 mine = emulator::matrix_row(r);  // a variable: gcc has no hook where a result is stored
    *(uint4 *)row = mine;
}

#else

// `mma.sync.aligned.m16n8k16.row.col`: d += a @ b, accumulated in float32.
#define MMA_M16N8K16(NAME, TYPE)                                                                  \
    __device__ __forceinline__ void NAME(                                                         \
        float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {                          \
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 "               \
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"            \
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                             \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));         \
    }
MMA_M16N8K16(mma_m16n8k16_bf16, "bf16")
MMA_M16N8K16(mma_m16n8k16_fp16, "f16")
#undef MMA_M16N8K16

// `ldmatrix.sync.aligned.m8n8`: loads four or two 8 x 8 matrices, or their transposes, as fragments.
#define LDMATRIX_X4(NAME, KIND)                                                                   \
    __device__ __forceinline__ void NAME(unsigned (&r)[4], const void* row) {                     \
        asm volatile("ldmatrix.sync.aligned.m8n8.x4" KIND ".shared.b16 {%0, %1, %2, %3}, [%4];"   \
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])                             \
                     : "r"((unsigned)__cvta_generic_to_shared(row))                               \
                     : "memory");                                                                 \
    }
#define LDMATRIX_X2(NAME, KIND)                                                                   \
    __device__ __forceinline__ void NAME(unsigned (&r)[2], const void* row) {                     \
        asm volatile("ldmatrix.sync.aligned.m8n8.x2" KIND ".shared.b16 {%0, %1}, [%2];"           \
                     : "=r"(r[0]), "=r"(r[1])                                                     \
                     : "r"((unsigned)__cvta_generic_to_shared(row))                               \
                     : "memory");                                                                 \
    }
LDMATRIX_X4(ldmatrix_x4, "")
LDMATRIX_X4(ldmatrix_x4_trans, ".trans")
LDMATRIX_X2(ldmatrix_x2, "")
LDMATRIX_X2(ldmatrix_x2_trans, ".trans")
#undef LDMATRIX_X4
#undef LDMATRIX_X2

// `stmatrix.sync.aligned.m8n8`: stores four 8 x 8 matrices, which lanes hold as fragments.
__device__ __forceinline__ void stmatrix_x4(void* row, const unsigned (&r)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"((unsigned)__cvta_generic_to_shared(row)),
                   "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}

#endif
