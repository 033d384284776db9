// matmul_relu backward_input, rung 2: fused epilogue (the ReLU before the store)
// Before: rung 1 stores the product, and a second kernel visits all of it again. Its product loads
//         two elements from memory for each multiply-add.
// Change: one kernel with a fused epilogue (the code after the main loop): the thread that has a
//         sum loads the element of out at the same place, and stores the sum or 0. The product is
//         that of matmul.backward_input rung 2, with tiles in shared memory.
// Expect: the time of a product. Beside the bytes of a product, only the read of out is left.
// Needs:  nothing
// Define: TILE = 32
// Launch: matmul_relu_backward_input<<<(ceil_div(C, TILE), ceil_div(N, TILE)), TILE * TILE>>>
// After:  matmul.backward_input 2
// Left:   the product: two loads from shared memory for each multiply-add. In 16 bits, tensor cores
//         multiply -> 16bit rung 4. In float32, threads compute more than one output -> float32
//         rung 3.

#include "portable.cuh"

extern "C" __global__ void matmul_relu_backward_input(
    real* __restrict__ dinp,          // (N, C)
    const real* __restrict__ dout,    // (N, OC)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ out,     // (N, C)
    int N, int C, int OC) {
    __shared__ float a[TILE][TILE];  // (row of the tile, feature)     of dout
    __shared__ float b[TILE][TILE];  // (feature, column of the tile)  of weight
    int x = threadIdx.x % TILE, y = threadIdx.x / TILE;
    int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;

    float sum = 0.0f;
    for (int start = 0; start < OC; start += TILE) {
        int i = start + x, feature = start + y;
        a[y][x] = row < N && i < OC ? to_float(dout[(size_t)row * OC + i]) : 0.0f;
        b[y][x] = feature < OC && column < C ? to_float(weight[(size_t)feature * C + column])
                                             : 0.0f;
        __syncthreads();  // the tiles are complete before any thread reads them
        for (int k = 0; k < TILE; k++) {
            sum += a[y][k] * b[k][x];
        }
        __syncthreads();  // all have read the tiles before the next ones overwrite them
    }
    if (row < N && column < C) {
        size_t index = (size_t)row * C + column;
        dinp[index] = to_real(to_float(out[index]) > 0.0f ? sum : 0.0f);
    }
}
