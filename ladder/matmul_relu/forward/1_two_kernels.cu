// matmul_relu forward, rung 1: two kernels (unfused)
// Before: the NumPy reference.
// Change: one kernel for the product, in which one thread computes each output, and one for the
//         ReLU, in which one thread replaces an element that the first kernel has stored.
// Expect: the product is far below the roof (the roofline ceiling), as in matmul.forward rung 1.
//         With a faster product, the ReLU would still move 2 * N * OC * sizeof(real) bytes.
// Needs:  nothing
// Define: BLOCK = 256
// Launch: matmul_relu_forward_product<<<ceil_div(N * OC, BLOCK), BLOCK>>>
// Launch: matmul_relu_forward<<<ceil_div(N * OC, BLOCK), BLOCK>>>
// Left:   every element goes to memory, comes back, and goes to memory again -> rung 2.

#include "portable.cuh"

// Not fmaxf(x, 0): it returns 0 for NaN, and so would hide it.
__device__ float relu(float x) { return x < 0.0f ? 0.0f : x; }

// Computes out = inp @ weight.T + bias.
extern "C" __global__ void matmul_relu_forward_product(
    real* __restrict__ out,           // (N, OC)
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
    out[index] = to_real(sum);
}

// Computes out = max(out, 0).
extern "C" __global__ void matmul_relu_forward(
    real* __restrict__ out, const real* __restrict__ inp, const real* __restrict__ weight,
    const real* __restrict__ bias, int N, int C, int OC) {
    size_t index = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (index >= (size_t)N * OC) return;
    out[index] = to_real(relu(to_float(out[index])));
}
