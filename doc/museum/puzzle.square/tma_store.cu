// puzzle square: a persistent kernel stores its tiles by TMA, from one buffer
// Needs:  sm == 90; warp == 32; C % 4 == 0
// Define: ROWS = 16; COLUMNS = 32; THREADS = 64; WIDE = ceil_div(C, COLUMNS);
//         TILES = ceil_div(N, ROWS) * WIDE
// Launch: puzzle_square<<<min(TILES, multiprocessors), THREADS>>>
// Tiles:  out[ROWS, COLUMNS]

#include "hopper.cuh"
#include "portable.cuh"

extern "C" __global__ void puzzle_square(
    float* __restrict__ out,      // (N, C)
    const float* __restrict__ a,  // (N, C)
    int N, int C, const __grid_constant__ TensorMap out_tiles) {
    __shared__ __align__(1024) float results[ROWS][COLUMNS];
    for (int tile = blockIdx.x; tile < TILES; tile += gridDim.x) {
        int row = tile / WIDE * ROWS, column = tile % WIDE * COLUMNS;
        if (threadIdx.x == 0) tma_store_wait<0>();  // the store before has read the buffer
        __syncthreads();  // ... before any thread overwrites it
        for (int i = threadIdx.x; i < ROWS * COLUMNS; i += THREADS) {
            int r = i / COLUMNS, c = i % COLUMNS;
            float x = row + r < N && column + c < C ? a[(size_t)(row + r) * C + column + c] : 0.0f;
            results[r][c ^ r % 8 * 4] = x * x;  // TMA's swizzle, of pieces of 4
        }
        tma_store_fence();  // what this thread has written becomes visible to TMA
        __syncthreads();    // all of the tile is written before TMA reads it
        if (threadIdx.x == 0) {
            tma_store_2d(&out_tiles, results, column, row);
            tma_store_commit();
        }
    }
    if (threadIdx.x == 0) tma_store_wait<0>();  // before the block ends
}
