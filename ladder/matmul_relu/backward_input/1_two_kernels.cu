// matmul_relu backward_input, rung 1: two kernels (unfused)
// Before: the NumPy reference.
// Change: one kernel for the product, in which one thread computes each output, and one for the
//         ReLU, in which one thread sets an element to 0 where out is not positive.
// Expect: the product is far below the roof (the roofline ceiling), as in matmul.backward_input
//         rung 1. With a faster product, the second kernel would still read out and touch most
//         sectors of dinp: up to 2 * N * C * sizeof(real) bytes.
// Needs:  nothing
// Define: BLOCK = 256
// Launch: matmul_relu_backward_input_product<<<ceil_div(N * C, BLOCK), BLOCK>>>
// Launch: matmul_relu_backward_input<<<ceil_div(N * C, BLOCK), BLOCK>>>
// Left:   dinp is written twice -> rung 2.

#include "portable.cuh"

// Computes dinp = dout @ weight.
extern "C" __global__ void matmul_relu_backward_input_product(
    real* __restrict__ dinp,          // (N, C)
    const real* __restrict__ dout,    // (N, OC)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ out,     // (N, C)
    int N, int C, int OC) {
    size_t index = (size_t)blockIdx.x * BLOCK + threadIdx.x;  // N * C can exceed an int
    if (index >= (size_t)N * C) return;
    int row = index / C, column = index % C;
    const real* dy = dout + (size_t)row * OC;  // (OC)

    float sum = 0.0f;
    for (int i = 0; i < OC; i++) {
        sum += to_float(dy[i]) * to_float(weight[(size_t)i * C + column]);
    }
    dinp[index] = to_real(sum);
}

// Computes dinp = dinp where out > 0, else 0.
extern "C" __global__ void matmul_relu_backward_input(
    real* __restrict__ dinp, const real* __restrict__ dout, const real* __restrict__ weight,
    const real* __restrict__ out, int N, int C, int OC) {
    size_t index = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (index >= (size_t)N * C) return;
    if (!(to_float(out[index]) > 0.0f)) dinp[index] = to_real(0.0f);
}
