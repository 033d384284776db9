// gelu backward, rung 4: instruction-level parallelism, several loads in flight
// Before: in rung 3, a thread loads once, waits, and then computes.
// Change: a thread takes IN_FLIGHT vectors, BLOCK vectors apart. The loop is unrolled, and all
//         loads are issued before it computes with the first value (instruction-level parallelism).
//         The accesses of a warp stay coalesced.
// Expect: the computation on one vector hides the latency of the next. Where rung 3 has enough
//         warps to hide it already, this changes little.
// Needs:  N % vector == 0
// Define: BLOCK = 256; IN_FLIGHT = 4
// Launch: gelu_backward<<<ceil_div(N, BLOCK * IN_FLIGHT * vector), BLOCK>>>
// Pays:   no, rung 3 has enough warps to hide the latency, and more of them than this rung
// After:  3
// Left:   only the bytes themselves: the matmul next to it could do this, too (fusion).

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
    size_t first = (size_t)blockIdx.x * BLOCK * IN_FLIGHT + threadIdx.x;  // counted in vectors
    Vec dys[IN_FLIGHT], xs[IN_FLIGHT];
#pragma unroll
    for (int j = 0; j < IN_FLIGHT; j++) {
        size_t i = (first + j * BLOCK) * VECTOR;
        if (i >= N) break;
        dys[j] = load_vec(dout + i);
        xs[j] = load_vec(inp + i);
    }
#pragma unroll
    for (int j = 0; j < IN_FLIGHT; j++) {
        size_t i = (first + j * BLOCK) * VECTOR;
        if (i >= N) break;
        Vec dxs;
        for (int k = 0; k < VECTOR; k++) {
            dxs[k] = to_real(to_float(dys[j][k]) * gelu_slope(to_float(xs[j][k])));
        }
        store_vec(dinp + i, dxs);
    }
}
