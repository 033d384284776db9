// gelu forward, rung 4: instruction-level parallelism, several loads in flight
// Before: in rung 3, a thread loads once, waits, and then computes.
// Change: a thread takes IN_FLIGHT vectors, BLOCK vectors apart. The loop is unrolled, and all
//         loads are issued before it computes with the first value (instruction-level parallelism).
//         The accesses of a warp stay coalesced.
// Expect: the computation on one vector hides the latency of the next. Where rung 3 has enough
//         warps to hide it already, this changes little.
// Needs:  N % vector == 0
// Define: BLOCK = 256; IN_FLIGHT = 4
// Launch: gelu_forward<<<ceil_div(N, BLOCK * IN_FLIGHT * vector), BLOCK>>>
// Pays:   no, rung 3 has enough warps to hide the latency
// After:  3
// Left:   only the bytes themselves: the matmul next to it could do this, too (fusion).

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
    size_t first = (size_t)blockIdx.x * BLOCK * IN_FLIGHT + threadIdx.x;  // counted in vectors
    Vec xs[IN_FLIGHT];
#pragma unroll
    for (int j = 0; j < IN_FLIGHT; j++) {
        size_t i = (first + j * BLOCK) * VECTOR;
        if (i >= N) break;
        xs[j] = load_vec(inp + i);
    }
#pragma unroll
    for (int j = 0; j < IN_FLIGHT; j++) {
        size_t i = (first + j * BLOCK) * VECTOR;
        if (i >= N) break;
        Vec ys;
        for (int k = 0; k < VECTOR; k++) {
            ys[k] = to_real(gelu(to_float(xs[j][k])));
        }
        store_vec(out + i, ys);
    }
}
