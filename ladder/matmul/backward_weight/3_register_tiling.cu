// matmul backward_weight, rung 3: register tiling
// Before: rung 2 loads two elements from shared memory for each multiply-add.
// Change: a thread computes EACH * EACH outputs. For each row of dout and inp, it loads EACH
//         elements of one and EACH of the other, and multiplies each with each. A thread's outputs
//         are THREADS apart, so that neighbouring lanes read neighbouring elements.
// Expect: 2 * EACH loads serve EACH * EACH multiply-adds: one load for four of them. But tiles are
//         larger, so there are fewer blocks: a weight of 768 x 768 has 36.
// Needs:  nothing
// Define: EACH = 8; THREADS = 16; TILE = EACH * THREADS; DEPTH = 16
// Launch: matmul_backward_weight<<<(ceil_div(C, TILE), ceil_div(OC, TILE)), THREADS * THREADS>>>
// After:  2
// Left:   each load moves one element -> rung 4; few blocks -> rung 5.

#include "portable.cuh"

// Copies a tile of `matrix` (rows, columns) at (row, column); zeros outside it.
__device__ __forceinline__ void load_tile(float (&tile)[DEPTH][TILE], const real* matrix, int row,
                                          int column, int rows, int columns) {
#pragma unroll
    for (int t = threadIdx.x; t < TILE * DEPTH; t += THREADS * THREADS) {
        int r = row + t / TILE, c = column + t % TILE;
        bool inside = r < rows && c < columns;
        tile[t / TILE][t % TILE] = inside ? to_float(matrix[(size_t)r * columns + c]) : 0.0f;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS * THREADS) matmul_backward_weight(
    float* __restrict__ dweight,    // (OC, C)  accumulates
    const real* __restrict__ dout,  // (N, OC)
    const real* __restrict__ inp,   // (N, C)
    int N, int C, int OC) {
    __shared__ float a[DEPTH][TILE];  // (row of dout, row of the tile)
    __shared__ float b[DEPTH][TILE];  // (row of inp, column of the tile)
    int x = threadIdx.x % THREADS, y = threadIdx.x / THREADS;
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;  // where the block's tile begins

    float sums[EACH][EACH] = {};
    for (int start = 0; start < N; start += DEPTH) {
        load_tile(a, dout, start, row, N, OC);
        load_tile(b, inp, start, column, N, C);
        __syncthreads();  // the tiles are complete before any thread reads them
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            float as[EACH], bs[EACH];
            for (int i = 0; i < EACH; i++) {
                as[i] = a[k][y + i * THREADS];
                bs[i] = b[k][x + i * THREADS];
            }
            for (int i = 0; i < EACH; i++) {
                for (int j = 0; j < EACH; j++) {
                    sums[i][j] += as[i] * bs[j];
                }
            }
        }
        __syncthreads();  // all have read the tiles before the next ones overwrite them
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int r = row + y + i * THREADS;
        if (r >= OC) break;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            int c = column + x + j * THREADS;
            if (c >= C) break;
            dweight[(size_t)r * C + c] += sums[i][j];
        }
    }
}
