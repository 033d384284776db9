// matmul backward_input, 16bit rung 11: wgmma (warpgroup matrix multiply)
// Before: in rung 10, every warp reads fragments into registers before it multiplies them. mma.sync
//         cannot feed Hopper's tensor cores fast enough in this way. matmul.forward 16bit rung 12
//         has wgmma (warpgroup matrix multiply).
// Change: the product of matmul.forward 16bit rung 12. Four warps, a warpgroup, together multiply
//         64 x 16 by 16 x 256 elements. The tensor cores read them from shared memory themselves,
//         and the instruction returns at once. It needs shared memory swizzled in rows of 128 bytes
//         along the summed dimension, and weight has this dimension down its columns. So another
//         kernel first transposes weight into scratch.
// Expect: fragments need no registers and no load instructions, and shared memory delivers five
//         eighths of the bytes. The transpose moves few bytes: weight once, while the product reads
//         it N / 128 times.
// Needs:  real in (float16, bfloat16); sm == 90; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE_ROWS = 128; TILE_COLUMNS = 256; DEPTH = 64; WARPS = 8; STAGES = 4;
//         SHARED = STAGES * (TILE_ROWS + TILE_COLUMNS) * DEPTH * sizeof_real
// Launch: matmul_backward_input_transpose<<<(ceil_div(C, 64), ceil_div(OC, 64)), 256>>>
// Launch: matmul_backward_input<<<(ceil_div(C, TILE_COLUMNS), ceil_div(N, TILE_ROWS)),
//         WARPS * warp, SHARED>>>
// Scratch: real transposed[C, OC]
// After:  matmul.forward 16bit-12
// Left:   another launch, and a copy of weight, which another layout makes unnecessary -> rung 12.

#include "async.cuh"
#include "mma_real.cuh"
#include "wgmma_real.cuh"

constexpr int PIECES = DEPTH / VECTOR;  // of 16 bytes, to a row of a tile
constexpr int STEP = WARPS * WARP_SIZE / PIECES;  // rows that the block copies at once
constexpr int STRIDE = TILE_COLUMNS + VECTOR;  // padded: 8 rows of results begin in different banks

// Swizzle: the position of 16-byte piece p of a row in a tile (rows, DEPTH), as wgmma expects it.
__device__ __forceinline__ int place(int row, int p) {
    return row * DEPTH + (p ^ row % 8) * VECTOR;
}

// Starts to copy a tile of `matrix` (rows, OC) at `row` and feature `start`; zeros outside it.
template <int HEIGHT>  // of the tile
__device__ __forceinline__ void copy_tile(real* tile, const real* matrix, int row, int start,
                                          int rows, int OC) {
    int y = threadIdx.x / PIECES, p = threadIdx.x % PIECES, k = start + p * VECTOR;
    const real* from = matrix + (size_t)(row + y) * OC + k;
    real* to = tile + place(y, p);
#pragma unroll
    for (int s = 0; s < HEIGHT; s += STEP) {  // STEP is a multiple of 8: the swizzle repeats
        cp_async_16_or_zero(to + s * DEPTH, from + (size_t)s * OC,
                            row + y + s < rows && k < OC);
    }
}

extern "C" __global__ void __launch_bounds__(256) matmul_backward_input_transpose(
    const real* __restrict__ weight /* (OC, C) */, int N, int C, int OC,
    real* __restrict__ transposed /* (C, OC) */) {
    __shared__ real tile[64][64 + 2];  // (row, column)  of weight; rows begin one bank apart
    int row = blockIdx.y * 64, column = blockIdx.x * 64;
#pragma unroll
    for (int t = threadIdx.x; t < 64 * 8; t += 256) {  // 8 lanes read 128 bytes of a row
        int r = t / 8, c = t % 8 * VECTOR;
        Vec v = {};
        if (row + r < OC && column + c < C) {
            v = load_vec(weight + (size_t)(row + r) * C + column + c);
        }
        for (int k = 0; k < VECTOR; k++) {
            tile[r][c + k] = v[k];
        }
    }
    __syncthreads();  // the tile is complete before any thread reads it
#pragma unroll
    for (int t = threadIdx.x; t < 64 * 8; t += 256) {  // 4 lanes write 64 bytes of a row
        int c = t / 4 % 64, r = (t % 4 + t / 256 * 4) * VECTOR;
        Vec v;
        for (int k = 0; k < VECTOR; k++) {
            v[k] = tile[r + k][c];
        }
        if (row + r < OC && column + c < C) {
            store_vec(transposed + (size_t)(column + c) * OC + row + r, v);
        }
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE) matmul_backward_input(
    real* __restrict__ dinp,                // (N, C)
    const real* __restrict__ dout,          // (N, OC)
    int N, int C, int OC,
    const real* __restrict__ transposed) {  // (C, OC)  of weight
    extern __shared__ __align__(1024) Vec shared[];
    real* a = shared->at;                      // (STAGES, TILE_ROWS, DEPTH)     of dout
    real* b = a + STAGES * TILE_ROWS * DEPTH;  // (STAGES, TILE_COLUMNS, DEPTH)  of weight.T
    int row = blockIdx.y * TILE_ROWS, column = blockIdx.x * TILE_COLUMNS;  // where its tile begins
    int y = warp_id() / 4 * 64;  // the warpgroup's first row of the tile
    int lane = lane_id(), g = lane / 4, t = lane % 4;

    auto copy = [&](int stage, int start) {  // copies zeros past the end: cheaper than a branch
        copy_tile<TILE_ROWS>(a + stage * TILE_ROWS * DEPTH, dout, row, start, N, OC);
        copy_tile<TILE_COLUMNS>(b + stage * TILE_COLUMNS * DEPTH, transposed, column, start, C,
                                OC);
        cp_async_commit();
    };
    for (int stage = 0; stage < STAGES - 2; stage++) {
        copy(stage, stage * DEPTH);
    }
    float sums[TILE_COLUMNS / 2] = {};  // accumulators, laid out as mma.sync's D, 4 per matrix
    for (int start = 0, stage = 0; start < OC; start += DEPTH, stage = (stage + 1) % STAGES) {
        cp_async_wait<STAGES - 3>();
        tma_store_fence();  // makes the writes visible to wgmma (async proxy)
        __syncthreads();  // this stage has arrived; the stage filled next is free again
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            wgmma_m64k16<TILE_COLUMNS>(sums, a + (stage * TILE_ROWS + y) * DEPTH + k,
                                       b + stage * TILE_COLUMNS * DEPTH + k);
        }
        wgmma_commit();
        copy((stage + STAGES - 2) % STAGES, start + (STAGES - 2) * DEPTH);
        wgmma_wait<1>();
    }
    wgmma_wait<0>();

    cp_async_wait<0>();
    __syncthreads();  // copies and reads have ended before results overwrite the tiles
    real* patch = shared->at + warp_id() * 16 * STRIDE;  // (16, STRIDE)  for each warp
#pragma unroll
    for (int j = 0; j < TILE_COLUMNS / 8; j++) {
        unsigned* to = reinterpret_cast<unsigned*>(patch + g * STRIDE + j * 8 + 2 * t);
        to[0] = pack(sums[4 * j], sums[4 * j + 1]);
        to[8 * STRIDE / 2] = pack(sums[4 * j + 2], sums[4 * j + 3]);
    }
    __syncwarp();  // the results are in shared memory before other lanes read them
    int c = column + lane * VECTOR;  // 32 lanes store a row together
#pragma unroll
    for (int r = 0; r < 16; r++) {
        size_t n = row + warp_id() * 16 + r;
        if (n < N && c < C) {
            store_vec(dinp + n * C + c, load_vec(patch + r * STRIDE + lane * VECTOR));
        }
    }
}
