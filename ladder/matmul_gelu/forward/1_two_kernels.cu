// matmul_gelu forward, rung 1: two kernels (unfused)
// Before: the NumPy reference.
// Change: one kernel for each line of the equations. In the first, one thread computes each output
//         of the product. In the second, one thread computes the gelu of each element that the
//         first has stored.
// Expect: the product is far below the roof (the roofline ceiling), as in matmul.forward rung 1.
//         With a faster product, the gelu would still add 2 * N * OC * sizeof(real) bytes, half of
//         which were in registers a moment ago.
// Needs:  nothing
// Define: BLOCK = 256
// Launch: matmul_gelu_forward_product<<<ceil_div(N * OC, BLOCK), BLOCK>>>
// Launch: matmul_gelu_forward<<<ceil_div(N * OC, BLOCK), BLOCK>>>
// Rounds: pre, of which it takes the gelu
// Left:   pre goes to memory and comes back -> rung 2.

#include "portable.cuh"

constexpr float SCALE = 0.7978845608f;  // sqrt(2 / pi)
constexpr float CUBIC = 0.044715f;

__device__ float gelu(float x) {
    float u = SCALE * (x + CUBIC * x * x * x);
    return 0.5f * x * (1.0f + tanhf(u));
}

// Computes pre = inp @ weight.T + bias.
extern "C" __global__ void matmul_gelu_forward_product(
    real* __restrict__ out,           // (N, OC)
    real* __restrict__ pre,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC)
    int N, int C, int OC) {
    size_t index = (size_t)blockIdx.x * BLOCK + threadIdx.x;  // N * OC can exceed an int
    if (index >= (size_t)N * OC) return;
    int row = index / OC, column = index % OC;
    const real* x = inp + (size_t)row * C;        // (C)
    const real* w = weight + (size_t)column * C;  // (C)

    float sum = to_float(bias[column]);
    for (int i = 0; i < C; i++) {
        sum += to_float(x[i]) * to_float(w[i]);
    }
    pre[index] = to_real(sum);
}

// Computes out = gelu(pre).
extern "C" __global__ void matmul_gelu_forward(
    real* __restrict__ out, real* __restrict__ pre, const real* __restrict__ inp,
    const real* __restrict__ weight, const real* __restrict__ bias, int N, int C, int OC) {
    size_t index = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (index >= (size_t)N * OC) return;
    out[index] = to_real(gelu(to_float(pre[index])));
}
