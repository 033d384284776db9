// matmul_gelu forward, rung 2: fused epilogue (gelu before the store)
// Before: rung 1 stores pre, and a second kernel loads all of it again to compute the gelu. Its
//         product loads two elements from memory for each multiply-add.
// Change: one kernel with a fused epilogue (the code after the main loop): the thread that has a
//         sum stores it, and its gelu as well. The product is that of matmul.forward rung 2, with
//         tiles in shared memory.
// Expect: the time of a product, and no more. N * OC tanhs are negligible beside C times as many
//         multiply-adds, and N * OC * sizeof(real) bytes need not be read again.
// Needs:  nothing
// Define: TILE = 32
// Launch: matmul_gelu_forward<<<(ceil_div(OC, TILE), ceil_div(N, TILE)), TILE * TILE>>>
// Rounds: pre, of which it takes the gelu
// After:  matmul.forward 2
// Left:   the product: two loads from shared memory for each multiply-add -> rung 3.

#include "portable.cuh"

constexpr float SCALE = 0.7978845608f;  // sqrt(2 / pi)
constexpr float CUBIC = 0.044715f;

__device__ float gelu(float x) {
    float u = SCALE * (x + CUBIC * x * x * x);
    return 0.5f * x * (1.0f + tanhf(u));
}

extern "C" __global__ void matmul_gelu_forward(
    real* __restrict__ out,           // (N, OC)
    real* __restrict__ pre,           // (N, OC)
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
        real p = to_real(sum + to_float(bias[column]));
        pre[index] = p;
        out[index] = to_real(gelu(to_float(p)));  // of the rounded value that backward reads
    }
}
