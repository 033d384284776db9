// residual forward: a grid-stride loop
// Needs:  N % vector == 0
// Define: BLOCK = 256; GRID = min(ceil_div(N, BLOCK * vector), 8 * multiprocessors)
// Launch: residual_forward<<<GRID, BLOCK>>>
// After:  2

#include "portable.cuh"

extern "C" __global__ void residual_forward(
    real* __restrict__ out,         // (N)
    const real* __restrict__ inp1,  // (N)
    const real* __restrict__ inp2,  // (N)
    int N) {
    size_t first = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * VECTOR;
    for (size_t i = first; i < N; i += (size_t)GRID * BLOCK * VECTOR) {
        Vec a = load_vec(inp1 + i), b = load_vec(inp2 + i), sum;
        for (int k = 0; k < VECTOR; k++) {
            sum[k] = to_real(to_float(a[k]) + to_float(b[k]));
        }
        store_vec(out + i, sum);
    }
}
