// gelu backward, rung 3: one fast exponential instead of tanh
// Before: rung 2 calls tanhf, which spends instructions on the last bits, above all near 0.
// Change: (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u)): one power of two and one reciprocal. The special
//         function unit (SFU) computes both, and all constant factors are combined into one. The
//         addition of 1 makes their last bits irrelevant.
// Expect: three fifths of the instructions. Bound by memory in every type.
// Needs:  N % vector == 0
// Define: BLOCK = 256
// Launch: gelu_backward<<<ceil_div(N, BLOCK * vector), BLOCK>>>
// After:  2
// Left:   a thread loads once, waits, computes, stores and ends -> rung 4.

#include "fast_math.cuh"
#include "portable.cuh"

constexpr float SCALE = 0.7978845608f;  // sqrt(2 / pi)
constexpr float CUBIC = 0.044715f;
constexpr float LINEAR = -2.0f * LOG2_E * SCALE;  // exp(-2u) = 2^(LINEAR * (x + CUBIC * x^3))

// s = (1 + tanh(u)) / 2 is the sigmoid of 2u, and (1 - tanh(u)^2) / 2 = 2 s (1 - s). Near s = 1 the
// difference 1 - s loses most digits (cancellation); power * s is the same value with all digits.
__device__ float gelu_slope(float x) {
    float exponent = x * (LINEAR + LINEAR * CUBIC * x * x);
    float power = fast_exp2(fminf(exponent, 126.0f));  // exp(-2u), finite: infinity * 0 is NaN
    float s = __fdividef(1.0f, 1.0f + power);
    float du = SCALE + 3.0f * SCALE * CUBIC * x * x;  // du/dx
    return s + 2.0f * x * s * (power * s) * du;
}

extern "C" __global__ void gelu_backward(
    real* __restrict__ dinp,        // (N)
    const real* __restrict__ dout,  // (N)
    const real* __restrict__ inp,   // (N)
    int N) {
    size_t i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * VECTOR;
    if (i >= N) return;  // the last block may have more threads than there are vectors left
    Vec dys = load_vec(dout + i), xs = load_vec(inp + i), dxs;
    for (int k = 0; k < VECTOR; k++) {
        dxs[k] = to_real(to_float(dys[k]) * gelu_slope(to_float(xs[k])));
    }
    store_vec(dinp + i, dxs);
}
