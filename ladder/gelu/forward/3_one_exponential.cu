// gelu forward, rung 3: one exponential in place of tanh
// Before: rung 2 calls tanhf, which takes care of the last bits near 0 at some twenty instructions.
// Change: (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)): one exponential and one reciprocal, both by the
//         special function unit. The sum with 1 makes their last bits irrelevant.
// Expect: a quarter of the instructions; bound by memory in every type.
// Needs:  N % vector == 0
// Define: BLOCK = 256
// Launch: gelu_forward<<<ceil_div(N, BLOCK * vector), BLOCK>>>
// Left:   a thread loads once, waits, computes, stores and is gone -> rung 4.

#include "portable.cuh"

constexpr float SCALE = 0.7978845608f;  // sqrt(2 / pi)
constexpr float CUBIC = 0.044715f;

// (1 + tanh(u)) / 2 is the logistic function of 2u. __expf and __fdividef are the hardware's
// approximations; where exp overflows to infinity, the quotient is 0, as it should be.
__device__ float gelu(float x) {
    float u = SCALE * (x + CUBIC * x * x * x);
    return x * __fdividef(1.0f, 1.0f + __expf(-2.0f * u));
}

extern "C" __global__ void gelu_forward(
    real* __restrict__ out,        // (N)
    const real* __restrict__ inp,  // (N)
    int N) {
    size_t i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * VECTOR;
    if (i >= N) return;  // the last block may have more threads than there are vectors left
    Vec xs = load_vec(inp + i), ys;
    for (int k = 0; k < VECTOR; k++) {
        ys[k] = to_real(gelu(to_float(xs[k])));
    }
    store_vec(out + i, ys);
}
