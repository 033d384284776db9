// matmul backward_weight_bias, rung 2: bias from the factors of the product
// Before: rung 1 reads dout once for the product, and once more for the sums of its columns.
// Change: shared-memory tiling, as in matmul.backward_weight rung 2. A thread multiplies every
//         element of its column of dout by one of inp. It has this factor in a register, and also
//         adds it up. All threads of a row of dweight get the same sum; the first one stores it.
// Expect: the time of that product. An addition for each multiply-add does not show beside two
//         loads from shared memory.
// Needs:  nothing
// Define: TILE = 32
// Launch: matmul_backward_weight_bias<<<(ceil_div(C, TILE), ceil_div(OC, TILE)), TILE * TILE>>>
// After:  matmul.backward_weight 2
// Left:   the product of rung 2, with two loads for a multiply-add. Faster products are in
//         matmul.backward_weight: tensor cores -> 16bit rung 3; float32 -> float32 rung 3.

#include "portable.cuh"

extern "C" __global__ void matmul_backward_weight_bias(
    float* __restrict__ dweight,    // (OC, C)  accumulates
    float* __restrict__ dbias,      // (OC)  accumulates
    const real* __restrict__ dout,  // (N, OC)
    const real* __restrict__ inp,   // (N, C)
    int N, int C, int OC) {
    __shared__ float a[TILE][TILE];  // (row of dout, row of the tile)
    __shared__ float b[TILE][TILE];  // (row of inp, column of the tile)
    int x = threadIdx.x % TILE, y = threadIdx.x / TILE;
    int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    int feature = blockIdx.y * TILE + x;  // the column of dout that this thread copies from

    float sum = 0.0f, bias = 0.0f;
    for (int start = 0; start < N; start += TILE) {
        size_t i = start + y;
        a[y][x] = i < N && feature < OC ? to_float(dout[i * OC + feature]) : 0.0f;
        b[y][x] = i < N && column < C ? to_float(inp[i * C + column]) : 0.0f;
        __syncthreads();  // the tiles are complete before any thread reads them
        for (int k = 0; k < TILE; k++) {
            float factor = a[k][y];
            sum += factor * b[k][x];
            bias += factor;
        }
        __syncthreads();  // all have read the tiles before the next ones overwrite them
    }
    if (row < OC && column < C) {
        dweight[(size_t)row * C + column] += sum;
    }
    if (column == 0 && row < OC) dbias[row] += bias;
}
