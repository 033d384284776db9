// gelu forward, rung 3: one fast exponential instead of tanh
// Before: rung 2 calls tanhf, which spends instructions on the last bits, above all near 0.
// Change: (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)): one power of two and one reciprocal. The special
//         function unit (SFU) computes both, and all constant factors are combined into one. The
//         addition of 1 makes their last bits irrelevant.
// Expect: less than half the instructions. Bound by memory in every type.
// Needs:  N % vector == 0
// Define: BLOCK = 256
// Launch: gelu_forward<<<ceil_div(N, BLOCK * vector), BLOCK>>>
// After:  2
// Left:   a thread loads once, waits, computes, stores and ends -> rung 4.

#include "fast_math.cuh"
#include "portable.cuh"

constexpr float SCALE = 0.7978845608f;  // sqrt(2 / pi)
constexpr float CUBIC = 0.044715f;
constexpr float LINEAR = -2.0f * LOG2_E * SCALE;  // exp(-2u) = 2^(LINEAR * (x + CUBIC * x^3))

// (1 + tanh(u)) / 2 is the sigmoid of 2u. Where the power overflows to infinity, the quotient is 0,
// as it should be.
__device__ float gelu(float x) {
    float power = fast_exp2(x * (LINEAR + LINEAR * CUBIC * x * x));  // exp(-2u)
    return __fdividef(x, 1.0f + power);
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
