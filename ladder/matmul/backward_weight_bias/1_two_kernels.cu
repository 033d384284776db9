// matmul backward_weight_bias, rung 1: two kernels (unfused)
// Before: the NumPy reference.
// Change: one kernel for each gradient. In the first, one thread computes each element of dweight:
//         the dot product of a column of dout and a column of inp. In the second, one thread adds
//         up each column of dout.
// Expect: the product is far below the roof (the roofline ceiling), as in matmul.backward_weight
//         rung 1. With a faster product, the second kernel would still read all of dout:
//         N * OC * sizeof(real) bytes, which the product has just read.
// Needs:  nothing
// Define: BLOCK = 256
// Launch: matmul_backward_weight_bias<<<ceil_div(OC * C, BLOCK), BLOCK>>>
// Launch: matmul_backward_weight_bias_columns<<<ceil_div(OC, BLOCK), BLOCK>>>
// Left:   dout is read once more for the sake of one sum per column -> rung 2.

#include "portable.cuh"

// Computes dweight += dout.T @ inp.
extern "C" __global__ void matmul_backward_weight_bias(
    float* __restrict__ dweight,    // (OC, C)  accumulates
    float* __restrict__ dbias,      // (OC)  accumulates
    const real* __restrict__ dout,  // (N, OC)
    const real* __restrict__ inp,   // (N, C)
    int N, int C, int OC) {
    size_t index = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (index >= (size_t)OC * C) return;
    int row = index / C, column = index % C;

    float sum = 0.0f;
    for (size_t i = 0; i < N; i++) {  // N * OC can exceed an int
        sum += to_float(dout[i * OC + row]) * to_float(inp[i * C + column]);
    }
    dweight[index] += sum;
}

// Computes dbias += the sum over the rows of dout.
extern "C" __global__ void matmul_backward_weight_bias_columns(
    float* __restrict__ dweight, float* __restrict__ dbias, const real* __restrict__ dout,
    const real* __restrict__ inp, int N, int C, int OC) {
    int column = blockIdx.x * BLOCK + threadIdx.x;
    if (column >= OC) return;

    float sum = 0.0f;
    for (size_t i = 0; i < N; i++) {
        sum += to_float(dout[i * OC + column]);
    }
    dbias[column] += sum;
}
