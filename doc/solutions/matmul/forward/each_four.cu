// matmul forward: 16 outputs for each thread instead of 64
// Needs:  nothing
// Define: EACH = 4; THREADS = 16; TILE = EACH * THREADS; DEPTH = 16
// Launch: matmul_forward<<<(ceil_div(OC, TILE), ceil_div(N, TILE)), THREADS * THREADS>>>
// After:  3

#include "portable.cuh"

// Copies a tile of `matrix` (rows, C) at `row` and channel `start`, transposed; zeros outside it.
__device__ __forceinline__ void load_tile(float (&tile)[DEPTH][TILE + 2], const real* matrix,
                                          int row, int start, int rows, int C) {
#pragma unroll
    for (int t = threadIdx.x; t < TILE * DEPTH; t += THREADS * THREADS) {
        int y = t / DEPTH, k = t % DEPTH;
        bool inside = row + y < rows && start + k < C;
        tile[k][y] = inside ? to_float(matrix[(size_t)(row + y) * C + start + k]) : 0.0f;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS * THREADS) matmul_forward(
    real* __restrict__ out,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC), or null
    int N, int C, int OC) {
    // Two padding columns: lanes that copy 16 channels of 2 rows access 32 different banks.
    __shared__ float a[DEPTH][TILE + 2];  // (channel, row of the tile)     of inp
    __shared__ float b[DEPTH][TILE + 2];  // (channel, column of the tile)  of weight
    int x = threadIdx.x % THREADS, y = threadIdx.x / THREADS;
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;  // where the block's tile begins

    float sums[EACH][EACH] = {};
    for (int start = 0; start < C; start += DEPTH) {
        load_tile(a, inp, row, start, N, C);
        load_tile(b, weight, column, start, OC, C);
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
            if (c >= OC) break;
            float sum = sums[i][j] + (bias ? to_float(bias[c]) : 0.0f);
            out[(size_t)r * OC + c] = to_real(sum);
        }
    }
}
