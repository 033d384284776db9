// Products of small matrices on tensor cores, with the layout over the lanes of a warp known.
//
// nvcuda::wmma hides which lane holds what. mma.sync documents it, so that the result of one
// product can be changed row by row, and be a factor of the next, without leaving the registers.
// For 16-bit reals, warps of 32, and sm_80 or newer. With g = lane / 4 and t = lane % 4, and
// registers that hold two neighbouring reals each, the lower one in the lower half:
//
//     A (16, 16)  a[0], a[2]: row g, columns 2t and 2t + 8    a[1], a[3]: the same of row g + 8
//     B (16, 8)   b[0], b[1]: rows 2t and 2t + 8, column g
//     D (16, 8)   d[0], d[1]: row g, columns 2t and 2t + 1    d[2], d[3]: the same of row g + 8
//
// PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type" and "ldmatrix":
// https://docs.nvidia.com/cuda/parallel-thread-execution/
#pragma once

#include "portable.cuh"

// Two floats, rounded to reals, in one register.
__device__ __forceinline__ unsigned pack(float low, float high) {
#if defined(REAL_FLOAT16)
    __half2 pair = __floats2half2_rn(low, high);
#else
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
#endif
    return *reinterpret_cast<unsigned*>(&pair);
}

#if defined(KERNEL_LADDER_EMULATOR)

namespace emulator {

// What every lane of the warp holds in an array of registers: [lane][register].
template <int N>
struct WarpRegisters {
    unsigned at[32][N];
    __forceinline__ explicit WarpRegisters(const unsigned (&mine)[N]) {
        auto lanes = (const unsigned* const*)emulator_warp(WARP_GATHER, ~0ull, (uint64_t)mine, 0);
        for (int lane = 0; lane < 32; lane++) {
            for (int i = 0; i < N; i++) at[lane][i] = lanes[lane][i];
        }
        __syncwarp();  // nobody goes on, and changes its registers, before all have read them
    }
    __forceinline__ float number(int lane, int i, int upper) const {
        unsigned short bits = (unsigned short)(at[lane][i] >> 16 * upper);
        return to_float(*reinterpret_cast<const real*>(&bits));
    }
};

}  // namespace emulator

__forceinline__ void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    emulator::WarpRegisters<4> as(a);
    emulator::WarpRegisters<2> bs(b);
    for (int i = 0; i < 4; i++) {
        int row = lane_id() / 4 + i / 2 * 8, column = lane_id() % 4 * 2 + i % 2;
        for (int k = 0; k < 16; k++) {
            d[i] += as.number(row % 8 * 4 + k % 8 / 2, row / 8 + k / 8 * 2, k % 2) *
                    bs.number(column * 4 + k % 8 / 2, k / 8, k % 2);
        }
    }
}

namespace emulator {

__forceinline__ void load_matrices(unsigned (&to)[4], const real* row, bool transposed) {
    auto rows = (const real* const*)emulator_warp(WARP_GATHER, ~0ull, (uint64_t)row, 0);
    int g = lane_id() / 4, t = lane_id() % 4;
    for (int i = 0; i < 4; i++) {
        real pair[2];
        for (int j = 0; j < 2; j++) {
            pair[j] = transposed ? rows[i * 8 + 2 * t + j][g] : rows[i * 8 + g][2 * t + j];
        }
        __builtin_memcpy(&to[i], pair, sizeof to[i]);
    }
    __syncwarp();
}

}  // namespace emulator

__forceinline__ void load_matrices(unsigned (&to)[4], const real* row) {
    emulator::load_matrices(to, row, false);
}
__forceinline__ void load_matrices_transposed(unsigned (&to)[4], const real* row) {
    emulator::load_matrices(to, row, true);
}

#else

// d += a @ b, added up in float32; by all lanes of a warp together.
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4],
                                             const unsigned (&b)[2]) {
#if defined(REAL_FLOAT16)
#define KERNEL_LADDER_MMA "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#else
#define KERNEL_LADDER_MMA "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
#endif
    asm(KERNEL_LADDER_MMA " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Loads four matrices of 8 x 8 reals from shared memory, matrix i into to[i]: each lane gets row g,
// columns 2t and 2t + 1. Lane l gives the address of row l % 8 of matrix l / 8, a multiple of 16
// bytes. The eight rows of a matrix should begin in different banks.
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], const real* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}

// The same, transposed: each lane gets rows 2t and 2t + 1, column g.
__device__ __forceinline__ void load_matrices_transposed(unsigned (&to)[4], const real* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"((unsigned)__cvta_generic_to_shared(row))
                 : "memory");
}

#endif
