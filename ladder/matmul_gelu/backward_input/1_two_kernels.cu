// matmul_gelu backward_input, rung 1: two kernels (unfused)
// Before: the NumPy reference.
// Change: one kernel for each factor. In the first, one thread computes each output of the product.
//         In the second, one thread multiplies an element that the first has stored by the slope
//         of the gelu.
// Expect: the product is far below the roof (the roofline ceiling), as in matmul.backward_input
//         rung 1. With a faster product, the second kernel would still move 3 * N * C *
//         sizeof(real) bytes, and the product was in registers a moment ago.
// Needs:  nothing
// Define: BLOCK = 256
// Launch: matmul_gelu_backward_input_product<<<ceil_div(N * C, BLOCK), BLOCK>>>
// Launch: matmul_gelu_backward_input<<<ceil_div(N * C, BLOCK), BLOCK>>>
// Rounds: the product, which the second kernel multiplies
// Left:   the product goes to memory and comes back -> rung 2.

#include "portable.cuh"

constexpr float SCALE = 0.7978845608f;  // sqrt(2 / pi)
constexpr float CUBIC = 0.044715f;

__device__ float gelu_slope(float x) {
    float t = tanhf(SCALE * (x + CUBIC * x * x * x));
    float du = SCALE * (1.0f + 3.0f * CUBIC * x * x);  // du/dx
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * du;
}

// Computes dinp = dout @ weight.
extern "C" __global__ void matmul_gelu_backward_input_product(
    real* __restrict__ dinp,          // (N, C)
    const real* __restrict__ dout,    // (N, OC)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ pre,     // (N, C)
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

// Computes dinp = dinp * gelu'(pre).
extern "C" __global__ void matmul_gelu_backward_input(
    real* __restrict__ dinp, const real* __restrict__ dout, const real* __restrict__ weight,
    const real* __restrict__ pre, int N, int C, int OC) {
    size_t index = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (index >= (size_t)N * C) return;
    dinp[index] = to_real(to_float(dinp[index]) * gelu_slope(to_float(pre[index])));
}
