// matmul_residual forward, rung 1: fused epilogue (the stream is added before the store)
// Before: in matmul.forward rung 2, the product goes to memory. A second kernel (residual.forward)
//         loads it and the stream, and stores their sum.
// Change: the thread that has a sum adds the element of the stream. The product itself is stored
//         nowhere, since no gradient needs it.
// Expect: 2 * N * OC * sizeof(real) bytes less than the two kernels, in the time of the
//         product.
// Needs:  nothing
// Define: TILE = 32
// Launch: matmul_residual_forward<<<(ceil_div(OC, TILE), ceil_div(N, TILE)), TILE * TILE>>>
// After:  matmul.forward 2
// Left:   the product: two loads from shared memory for each multiply-add -> 16bit rung 2.

#include "portable.cuh"

extern "C" __global__ void matmul_residual_forward(
    real* __restrict__ out,           // (N, OC)
    const real* __restrict__ stream,  // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC)
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
        size_t index = (size_t)row * OC + column;
        out[index] = to_real(sum + to_float(bias[column]) + to_float(stream[index]));
    }
}
