// `mma.sync` on TF32: matrix products of a warp on tensor cores, of float32 numbers that are
// rounded to TF32 (sm_80 and later). TF32 has the range of float32, and 10 instead of 23 bits of
// fraction.
//
// mma_m16n8k8_tf32 computes D (16, 8) += A (16, 8) * B (8, 8). Each factor has a register of its
// own. Lane l holds, with g = l / 4 and t = l % 4, and D as in mma.cuh:
//     a[0] = A[g][t]      a[1] = A[g + 8][t]      a[2] = A[g][t + 4]      a[3] = A[g + 8][t + 4]
//     b[0] = B[t][g]      b[1] = B[t + 4][g]
//
// ldmatrix loads such fragments where the tile has rows of what is summed over: an 8 x 8 matrix of
// 16-bit elements is an 8 x 4 matrix of float32, and the halves of element [g][t] stay together. It
// cannot transpose them: _trans would part the halves.
//
// PTX ISA, "mma.sync" and "cvt": https://docs.nvidia.com/cuda/parallel-thread-execution/
#pragma once

#include "mma.cuh"

#ifdef KERNEL_LADDER_EMULATOR

namespace emulator {

// The lanes' registers hold a row of A (columns t and t + 4) and a column of B.
__device__ __noinline__ EMULATOR_UNCOUNTED inline void mma_tf32(
    float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    struct Registers {
        const unsigned *a, *b;
    } mine{a, b};
    Registers *const *lanes = show(&mine);
    auto element = [](unsigned bits) {  // the tensor cores do not read the last 13 bits
        return __uint_as_float(bits & ~0x1fffu);
    };
    int g = current.thread->lane / 4, t = current.thread->lane % 4;
    for (int i = 0; i < 4; i++) {
        int row = g + i / 2 * 8, column = 2 * t + i % 2;
        float sum = d[i];
        for (int k = 0; k < 8; k++) {
            unsigned x = lanes[row % 8 * 4 + k % 4]->a[row / 8 + k / 4 * 2];
            unsigned y = lanes[column * 4 + k % 4]->b[k / 4];
            sum += element(x) * element(y);
        }
        d[i] = sum;
    }
    emulator_warp(WARP_SYNC, ~0ull, 0, 0);  // all lanes have read the others' registers
}

}  // namespace emulator

__device__ __forceinline__ void mma_m16n8k8_tf32(
    float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    emulator::mma_tf32(d, a, b);
}
__device__ __forceinline__ unsigned to_tf32(float x) {
    unsigned bits = __float_as_uint(x);
    if (~bits & 0x7f800000) bits += 0x1000;  // if finite: half of the last place that is kept
    return bits & ~0x1fffu;
}

#else

// `mma.sync.aligned.m16n8k8.row.col` on TF32: d += a @ b, accumulated in float32.
__device__ __forceinline__ void mma_m16n8k8_tf32(
    float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// `cvt.rna.tf32.f32`: rounds to TF32, to the nearest value, and of two that are equally near to the
// one away from zero.
__device__ __forceinline__ unsigned to_tf32(float x) {
    unsigned bits;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
    return bits;
}

#endif
