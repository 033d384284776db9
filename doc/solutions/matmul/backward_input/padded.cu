// matmul backward_input: tiles with a padding column
// Needs:  nothing
// Define: TILE = 32
// Launch: matmul_backward_input<<<(ceil_div(C, TILE), ceil_div(N, TILE)), TILE * TILE>>>
// After:  2

#include "portable.cuh"

extern "C" __global__ void matmul_backward_input(
    real* __restrict__ dinp,          // (N, C)
    const real* __restrict__ dout,    // (N, OC)
    const real* __restrict__ weight,  // (OC, C)
    int N, int C, int OC) {
    __shared__ float a[TILE][TILE + 1];  // (row of the tile, feature)     of dout
    __shared__ float b[TILE][TILE + 1];  // (feature, column of the tile)  of weight
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
        dinp[(size_t)row * C + column] = to_real(sum);
    }
}
