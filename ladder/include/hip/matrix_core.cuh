// Matrix products of a wave on AMD's matrix cores: one interface for MFMA (mfma.cuh, waves of 64)
// and WMMA (wmma.cuh, waves of 32). The rung defines SIDE: 16, or with MFMA also 32.
//
// multiply_add computes D (SIDE, SIDE) += A (SIDE, STEP) * B (SIDE, STEP)^T. Rows of A and B lie in
// shared memory in pieces of 16 bytes, VECTOR neighbouring elements. Each lane loads pieces of one
// row of A and one of B, its fragments:
//                MFMA                  WMMA of RDNA 4      WMMA of RDNA 3
//     STEP       512 / SIDE            16                  16
//     pieces     one: lane / SIDE      one: lane / 16      two: all of the row; lanes l and l + 16
//                                                          load the same
//     RUN        4                     8                   4
//
// Of D, a lane holds elements of column d_column(), in runs of RUN neighbouring rows: element i is
// in row d_row(i). With A and B exchanged, these are neighbours of a row, which one store writes.
//
// All lanes of the wave must call load_a, load_b and multiply_add together. The tile must be
// complete in shared memory: a barrier lies between the threads that write it and these loads.
#pragma once

#include "portable.cuh"
#ifdef KERNEL_LADDER_EMULATOR
#include "matrix_core_cpu.h"
#endif

#if WARP_SIZE == 64
#include "mfma.cuh"
constexpr int PIECES = 1, STEP = 512 / SIDE, RUN = 4;
#else
#include "wmma.cuh"
static_assert(SIDE == 16, "WMMA has no other shape");
constexpr int PIECES = WMMA_REGISTERS / 4, STEP = 16, RUN = PIECES == 2 ? 4 : 8;
#endif
constexpr int GROUPS = WARP_SIZE / SIDE;      // of lanes: a group holds one piece of every row
constexpr int EACH = SIDE * SIDE / WARP_SIZE;  // elements of D in a lane

struct Fragment {
    uint4 piece[PIECES];
};

struct Accumulator {
    float at[EACH];
    __device__ __forceinline__ float& operator[](int i) { return at[i]; }
    __device__ __forceinline__ const float& operator[](int i) const { return at[i]; }
};

// The row and the column of D that element i of this lane is.
__device__ __forceinline__ int d_row(int i) {
    return i / RUN * RUN * GROUPS + lane_id() / SIDE * RUN + i % RUN;
}
__device__ __forceinline__ int d_column() { return lane_id() % SIDE; }

// Which row of B this lane loads, and which of A. On RDNA 3, half g of the lanes gets rows
// 2i + g of D. So the lanes take the rows of A in another order, in which four are neighbours.
__device__ __forceinline__ int b_row() { return lane_id() % SIDE; }
__device__ __forceinline__ int a_row() {
    int r = lane_id() % SIDE;
    return PIECES == 2 ? r / 8 * 8 + r % 2 * 4 + r / 2 % 4 : r;
}

// Loads this lane's part of `row` of a tile, channels k to k + STEP - 1. PLACE(row, piece) says
// where a piece of a row begins, as a number of elements from the start of the tile.
template <int (*PLACE)(int, int)>
__device__ __forceinline__ Fragment load_pieces(const real* tile, int row, int k) {
    Fragment f;
#pragma unroll
    for (int p = 0; p < PIECES; p++) {
        int piece = k / VECTOR + (PIECES == 2 ? p : lane_id() / SIDE);
        f.piece[p] = *reinterpret_cast<const uint4*>(tile + PLACE(row, piece));
    }
    return f;
}

// The fragments of B and of A, of the rows from `row` on.
template <int (*PLACE)(int, int)>
__device__ __forceinline__ Fragment load_b(const real* tile, int row, int k) {
    return load_pieces<PLACE>(tile, row + b_row(), k);
}
template <int (*PLACE)(int, int)>
__device__ __forceinline__ Fragment load_a(const real* tile, int row, int k) {
    return load_pieces<PLACE>(tile, row + a_row(), k);
}

// The fragment of A from a tile that is transposed (MN-major): element k of row m is
// tile[k * PITCH + m]. The neighbours of a piece lie apart, so each takes a load of 2 bytes.
template <int PITCH>
__device__ __forceinline__ Fragment gather_a(const real* tile, int row, int k) {
    Fragment f;
    real* elements = reinterpret_cast<real*>(&f);
    if (PIECES == 1) k += lane_id() / SIDE * VECTOR;
#pragma unroll
    for (int i = 0; i < PIECES * VECTOR; i++) {
        elements[i] = tile[(k + i) * PITCH + row + a_row()];
    }
    return f;
}

// `v_mfma_f32_...`, `v_wmma_f32_...`: d += a @ b^T, accumulated in float32.
__device__ __forceinline__ void multiply_add(Accumulator& d, const Fragment& a, const Fragment& b) {
#if WARP_SIZE == 64
    mfma_wide(d.at, a.piece[0], b.piece[0]);
#else
    using Part = const unsigned[WMMA_REGISTERS];
    wmma(d.at, reinterpret_cast<Part&>(a), reinterpret_cast<Part&>(b));
#endif
}

#if SIDE == 16

// A chain of products: turns D of one into B of the next, whose k are D's rows, rounded to real. It
// takes STEP / 16 accumulators, one below the other. Lanes keep what they hold, so k comes in
// another order: chain_order says at which place of A's rows each k of a step must stand. On RDNA
// 3, the halves of the wave exchange theirs with shuffles.
__device__ __forceinline__ int chain_order(int k) {
    int run = k % STEP / RUN;
    return k / STEP * STEP + (run % GROUPS * (VECTOR / RUN) + run / GROUPS) * RUN + k % RUN;
}
__device__ __forceinline__ Fragment chain(const Accumulator* d) {
    Fragment f;
    real* elements = reinterpret_cast<real*>(&f);
#pragma unroll
    for (int e = 0; e < VECTOR; e++) {
        elements[e] = to_real(d[e / EACH][e % EACH]);
    }
    if (PIECES == 2) {
        auto theirs = [](unsigned bits) {
            return __float_as_uint(shuffle_xor(__uint_as_float(bits), 16));
        };
        uint4 mine = f.piece[0];
        uint4 other = {theirs(mine.x), theirs(mine.y), theirs(mine.z), theirs(mine.w)};
        f.piece[0] = lane_id() < 16 ? mine : other;
        f.piece[PIECES - 1] = lane_id() < 16 ? other : mine;
    }
    return f;
}

#endif
