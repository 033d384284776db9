// matmul forward, rung 2: shared-memory tiling
// Before: rung 1b loads every row of weight N times and every row of inp OC times.
// Change: a block computes a square tile of outputs. It copies TILE channels of its rows of inp and
//         of weight to shared memory, adds up their products, and goes on to the next TILE
//         channels. Padding puts what the lanes of a warp read together into different banks.
//         Shared memory has 32 banks; each gives one 4-byte word at a time.
// Expect: a block loads every element from memory once: TILE times fewer loads. They stay
//         coalesced: neighbouring lanes copy neighbouring channels. Now shared memory is the
//         bottleneck, still with two loads for each multiply-add.
// Needs:  nothing
// Define: TILE = 32
// Launch: matmul_forward<<<(ceil_div(OC, TILE), ceil_div(N, TILE)), TILE * TILE>>>
// After:  1b
// Left:   two loads from shared memory for each multiply-add -> rung 3.

#include "portable.cuh"

extern "C" __global__ void matmul_forward(
    real* __restrict__ out,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC), or null
    int N, int C, int OC) {
    // One padding column: lanes that read down a column access TILE different banks.
    __shared__ float a[TILE][TILE + 1];  // (row of the tile, channel)     of inp
    __shared__ float b[TILE][TILE + 1];  // (column of the tile, channel)  of weight
    int x = threadIdx.x % TILE, y = threadIdx.x / TILE;
    int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    int feature = blockIdx.x * TILE + y;  // the row of weight that this thread copies from

    float sum = 0.0f;
    for (int start = 0; start < C; start += TILE) {
        int i = start + x;
        a[y][x] = row < N && i < C ? to_float(inp[(size_t)row * C + i]) : 0.0f;
        b[y][x] = feature < OC && i < C ? to_float(weight[(size_t)feature * C + i]) : 0.0f;
        __syncthreads();  // the tiles are complete before any thread reads them
        for (int k = 0; k < TILE; k++) {
            sum += a[y][k] * b[x][k];
        }
        __syncthreads();  // all have read the tiles before the next ones overwrite them
    }
    if (row < N && column < OC) {
        sum += bias ? to_float(bias[column]) : 0.0f;
        out[(size_t)row * OC + column] = to_real(sum);
    }
}
