// matmul_gelu backward_input, rung 2: fused epilogue (the slope before the store)
// Before: rung 1 stores the product, and a second kernel loads all of it again to multiply it by
//         the slope. Its product loads two elements from memory for each multiply-add.
// Change: one kernel with a fused epilogue (the code after the main loop): the thread that has a
//         sum loads the element of pre at the same place, and stores the sum times the slope. The
//         product is that of matmul.backward_input rung 2, with tiles in shared memory.
// Expect: the time of a product. The second kernel moved 3 * N * C * sizeof(real) bytes; only the
//         read of pre is left of them. The product is not rounded on the way.
// Needs:  nothing
// Define: TILE = 32
// Launch: matmul_gelu_backward_input<<<(ceil_div(C, TILE), ceil_div(N, TILE)), TILE * TILE>>>
// After:  matmul.backward_input 2
// Left:   the product: two loads from shared memory for each multiply-add. In 16 bits, tensor cores
//         multiply -> 16bit rung 3.

#include "portable.cuh"

constexpr float SCALE = 0.7978845608f;  // sqrt(2 / pi)
constexpr float CUBIC = 0.044715f;

__device__ float gelu_slope(float x) {
    float t = tanhf(SCALE * (x + CUBIC * x * x * x));
    float du = SCALE * (1.0f + 3.0f * CUBIC * x * x);  // du/dx
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * du;
}

extern "C" __global__ void matmul_gelu_backward_input(
    real* __restrict__ dinp,          // (N, C)
    const real* __restrict__ dout,    // (N, OC)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ pre,     // (N, C)
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
        dinp[index] = to_real(sum * gelu_slope(to_float(pre[index])));
    }
}
