// decode linear_gelu, rung 1: two kernels (unfused)
// Before: the NumPy reference.
// Change: the product is decode.linear rung 2, one warp per column. In a second kernel, one thread
//         computes the gelu of each element that the first has stored.
// Expect: for one row, the second kernel moves a few kilobytes: it takes a launch, and waits once
//         for memory.
// Needs:  nothing
// Define: WARPS = 8; ROWS = min(N, 8); BLOCK = 128
// Launch: decode_linear_gelu_product<<<ceil_div(OC, WARPS), WARPS * warp>>>
// Launch: decode_linear_gelu<<<ceil_div(N * OC, BLOCK), BLOCK>>>
// Scratch: real pre[N, OC]
// Rounds: pre, of which it takes the gelu
// Left:   the second launch -> rung 2.

#include "portable.cuh"

constexpr float SCALE = 0.7978845608f;  // sqrt(2 / pi)
constexpr float CUBIC = 0.044715f;

__device__ float gelu(float x) {
    float u = SCALE * (x + CUBIC * x * x * x);
    return 0.5f * x * (1.0f + tanhf(u));
}

// Computes pre = inp @ weight.T + bias.
extern "C" __global__ void decode_linear_gelu_product(
    real* __restrict__ out,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC)
    int N, int C, int OC,
    real* __restrict__ pre) {          // (N, OC)
    int column = blockIdx.x * WARPS + warp_id();
    if (column >= OC) return;  // the whole warp returns, so no shuffle below misses a lane
    const real* w = weight + (size_t)column * C;  // (C)

    for (int first = 0; first < N; first += ROWS) {
        const real* x = inp + (size_t)first * C;  // (ROWS, C)
        float sums[ROWS] = {};
        for (int i = lane_id(); i < C; i += WARP_SIZE) {
            float factor = to_float(w[i]);
            for (int r = 0; r < ROWS; r++) {
                if (first + r < N) sums[r] += to_float(x[(size_t)r * C + i]) * factor;
            }
        }
        for (int r = 0; r < ROWS; r++) {
            float sum = warp_sum(sums[r]) + to_float(bias[column]);
            if (lane_id() == 0 && first + r < N) {
                pre[(size_t)(first + r) * OC + column] = to_real(sum);
            }
        }
    }
}

extern "C" __global__ void decode_linear_gelu(
    real* __restrict__ out, const real* __restrict__ inp, const real* __restrict__ weight,
    const real* __restrict__ bias, int N, int C, int OC, real* __restrict__ pre) {
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (size_t)N * OC) return;  // the last block may have more threads than there are outputs
    out[i] = to_real(gelu(to_float(pre[i])));
}
