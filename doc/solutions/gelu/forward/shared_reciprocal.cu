// gelu forward: two elements share a reciprocal
// Needs:  N % vector == 0
// Define: BLOCK = 256
// Launch: gelu_forward<<<ceil_div(N, BLOCK * vector), BLOCK>>>
// After:  3

#include "fast_math.cuh"
#include "portable.cuh"

constexpr float SCALE = 0.7978845608f;  // sqrt(2 / pi)
constexpr float CUBIC = 0.044715f;
constexpr float LINEAR = -2.0f * LOG2_E * SCALE;  // exp(-2u) = 2^(LINEAR * (x + CUBIC * x^3))

// (1 + tanh(u)) / 2 is the sigmoid of 2u. Where the power overflows to infinity, the quotient is 0,
// as it should be.
__device__ float denominator(float x) {
    float exponent = x * (LINEAR + LINEAR * CUBIC * x * x);
    return 1.0f + fast_exp2(fminf(exponent, 63.0f));  // the product of two is finite
}

extern "C" __global__ void gelu_forward(
    real* __restrict__ out,        // (N)
    const real* __restrict__ inp,  // (N)
    int N) {
    size_t i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * VECTOR;
    if (i >= N) return;  // the last block may have more threads than there are vectors left
    Vec xs = load_vec(inp + i), ys;
    for (int k = 0; k < VECTOR; k += 2) {
        float x = to_float(xs[k]), z = to_float(xs[k + 1]);
        float a = denominator(x), b = denominator(z), both = __fdividef(1.0f, a * b);
        ys[k] = to_real(x * b * both);
        ys[k + 1] = to_real(z * a * both);
    }
    store_vec(out + i, ys);
}
