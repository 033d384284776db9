// matmul backward_weight, rung 2: shared-memory tiling
// Before: rung 1 loads all of dout C times and all of inp OC times.
// Change: a block computes a square tile of dweight. It copies TILE rows of its columns of dout and
//         of inp to shared memory, adds up their products, and goes on to the next TILE rows.
// Expect: a block loads every element from memory once: TILE times fewer loads. Now shared memory
//         is the bottleneck, still with two loads for each multiply-add.
// Needs:  nothing
// Define: TILE = 32
// Launch: matmul_backward_weight<<<(ceil_div(C, TILE), ceil_div(OC, TILE)), TILE * TILE>>>
// After:  1
// Left:   two loads from shared memory for each multiply-add -> rung 3.

#include "portable.cuh"

extern "C" __global__ void matmul_backward_weight(
    float* __restrict__ dweight,    // (OC, C)  accumulates
    const real* __restrict__ dout,  // (N, OC)
    const real* __restrict__ inp,   // (N, C)
    int N, int C, int OC) {
    __shared__ float a[TILE][TILE];  // (row of dout, row of the tile)
    __shared__ float b[TILE][TILE];  // (row of inp, column of the tile)
    int x = threadIdx.x % TILE, y = threadIdx.x / TILE;
    int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    int feature = blockIdx.y * TILE + x;  // the column of dout that this thread copies from

    float sum = 0.0f;
    for (int start = 0; start < N; start += TILE) {
        size_t i = start + y;
        a[y][x] = i < N && feature < OC ? to_float(dout[i * OC + feature]) : 0.0f;
        b[y][x] = i < N && column < C ? to_float(inp[i * C + column]) : 0.0f;
        __syncthreads();  // the tiles are complete before any thread reads them
        for (int k = 0; k < TILE; k++) {
            sum += a[k][y] * b[k][x];
        }
        __syncthreads();  // all have read the tiles before the next ones overwrite them
    }
    if (row < OC && column < C) {
        dweight[(size_t)row * C + column] += sum;
    }
}
