// matmul backward_input, rung 3: register tiling
// Before: rung 2 loads two elements from shared memory for each multiply-add.
// Change: a thread computes EACH * EACH outputs. For each feature, it loads EACH elements of the
//         tile of dout and EACH of the tile of weight, and multiplies each with each. A thread's
//         outputs are THREADS apart, so that neighbouring lanes read neighbouring elements.
// Expect: 2 * EACH loads serve EACH * EACH multiply-adds: one load for four of them. The larger
//         tile is loaded from memory TILE = 128 times less often than in rung 1.
// Needs:  nothing
// Define: EACH = 8; THREADS = 16; TILE = EACH * THREADS; DEPTH = 16
// Launch: matmul_backward_input<<<(ceil_div(C, TILE), ceil_div(N, TILE)), THREADS * THREADS>>>
// After:  2
// Left:   each load moves one element -> rung 4.

#include "portable.cuh"

// Copies a tile of `matrix` (rows, columns) at (row, column), transposed; zeros outside it.
__device__ __forceinline__ void load_transposed(float (&tile)[DEPTH][TILE + 2], const real* matrix,
                                                int row, int column, int rows, int columns) {
#pragma unroll
    for (int t = threadIdx.x; t < TILE * DEPTH; t += THREADS * THREADS) {
        int r = row + t / DEPTH, c = column + t % DEPTH;
        bool inside = r < rows && c < columns;
        tile[t % DEPTH][t / DEPTH] = inside ? to_float(matrix[(size_t)r * columns + c]) : 0.0f;
    }
}

// The same, not transposed.
__device__ __forceinline__ void load_tile(float (&tile)[DEPTH][TILE + 2], const real* matrix,
                                          int row, int column, int rows, int columns) {
#pragma unroll
    for (int t = threadIdx.x; t < TILE * DEPTH; t += THREADS * THREADS) {
        int r = row + t / TILE, c = column + t % TILE;
        bool inside = r < rows && c < columns;
        tile[t / TILE][t % TILE] = inside ? to_float(matrix[(size_t)r * columns + c]) : 0.0f;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS * THREADS) matmul_backward_input(
    real* __restrict__ dinp,          // (N, C)
    const real* __restrict__ dout,    // (N, OC)
    const real* __restrict__ weight,  // (OC, C)
    int N, int C, int OC) {
    // Two padding columns: lanes that copy 16 features of 2 rows access 32 different banks.
    __shared__ float a[DEPTH][TILE + 2];  // (feature, row of the tile)     of dout
    __shared__ float b[DEPTH][TILE + 2];  // (feature, column of the tile)  of weight
    int x = threadIdx.x % THREADS, y = threadIdx.x / THREADS;
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;  // where the block's tile begins

    float sums[EACH][EACH] = {};
    for (int start = 0; start < OC; start += DEPTH) {
        load_transposed(a, dout, row, start, N, OC);
        load_tile(b, weight, start, column, OC, C);
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
        if (r >= N) break;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            int c = column + x + j * THREADS;
            if (c >= C) break;
            dinp[(size_t)r * C + c] = to_real(sums[i][j]);
        }
    }
}
