// puzzle row_sum: the statistics of a tile's rows in shared memory, fewer than threads
// Needs:  nothing
// Deterministic: no, atomics add in any order
// Define: THREADS = 64; TILE_ROWS = 16; ITEMS = 4
// Launch: puzzle_row_sum<<<ceil_div(N, TILE_ROWS), THREADS>>>

#include "portable.cuh"

extern "C" __global__ void puzzle_row_sum(
    float* __restrict__ out,      // (N)
    const float* __restrict__ a,  // (N, C)
    int N, int C) {
    __shared__ float sums[TILE_ROWS];
    __shared__ int nonzeros[TILE_ROWS];
    for (int j = 0; j < ITEMS; j++) {
        int r = threadIdx.x + j * THREADS;
        if (r < TILE_ROWS) sums[r] = 0.0f;
        if (r < TILE_ROWS) nonzeros[r] = 0;
    }
    __syncthreads();  // all statistics are 0
    int first = blockIdx.x * TILE_ROWS;
    for (int row = first; row < min(first + TILE_ROWS, N); row++) {
        for (int i = threadIdx.x; i < C; i += THREADS) {
            float x = a[(size_t)row * C + i];
            if (x == 0.0f) continue;
            atomicAdd(&sums[row - first], x);
            atomicAdd(&nonzeros[row - first], 1);
        }
    }
    __syncthreads();  // they are complete
    int r = threadIdx.x;
    if (r < TILE_ROWS && first + r < N) out[first + r] = nonzeros[r] > 0 ? sums[r] : 0.0f;
}
