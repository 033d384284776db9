// matmul_relu forward, rung 2: fused epilogue (ReLU before the store)
// Before: rung 1 stores the product, and a second kernel loads and stores all of it again. Its
//         product loads two elements from memory for each multiply-add.
// Change: one kernel with a fused epilogue (the code after the main loop): the thread that has a
//         sum stores max(sum, 0). What was there before the ReLU is stored nowhere, since no
//         gradient needs it. The product is that of matmul.forward rung 2, with tiles in shared
//         memory.
// Expect: the time of a product, and the bytes of a product: 2 * N * OC * sizeof(real) less than in
//         rung 1.
// Needs:  nothing
// Define: TILE = 32
// Launch: matmul_relu_forward<<<(ceil_div(OC, TILE), ceil_div(N, TILE)), TILE * TILE>>>
// After:  matmul.forward 2
// Left:   the product: two loads from shared memory for each multiply-add. In 16 bits, tensor cores
//         multiply -> 16bit rung 5. In float32, threads compute more than one output -> float32
//         rung 4.

#include "portable.cuh"

// Not fmaxf(x, 0): it returns 0 for NaN, and so would hide it.
__device__ float relu(float x) { return x < 0.0f ? 0.0f : x; }

extern "C" __global__ void matmul_relu_forward(
    real* __restrict__ out,           // (N, OC)
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
        out[(size_t)row * OC + column] = to_real(relu(sum + to_float(bias[column])));
    }
}
