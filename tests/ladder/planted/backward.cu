// layernorm backward: a sound kernel, into which test_check.py plants one bug at a time
// Needs:  nothing
// Define: ROWS = 2
// Launch: layernorm_backward<<<ceil_div(N, ROWS), ROWS * warp>>>
// Deterministic: no, float atomics land in any order

#include "portable.cuh"

extern "C" __global__ void layernorm_backward(
    real* __restrict__ dinp,          // (N, C)
    float* __restrict__ dweight,      // (C)  accumulates
    float* __restrict__ dbias,        // (C)  accumulates
    const real* __restrict__ dout,    // (N, C)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (C)
    const float* __restrict__ mean,   // (N)
    const float* __restrict__ rstd,   // (N)
    int N, int C) {
    int row = blockIdx.x * ROWS + warp_id();
    if (row >= N) return;
    float m = mean[row], r = rstd[row];
    float a = 0.0f, b = 0.0f;
    for (int i = lane_id(); i < C; i += WARP_SIZE) {
        size_t at = (size_t)row * C + i;
        float dnorm = to_float(dout[at]) * to_float(weight[i]);
        a += dnorm;
        b += dnorm * (to_float(inp[at]) - m) * r;
    }
    a = warp_sum(a) / C;
    b = warp_sum(b) / C;
    for (int i = lane_id(); i < C; i += WARP_SIZE) {
        size_t at = (size_t)row * C + i;
        float dy = to_float(dout[at]), norm = (to_float(inp[at]) - m) * r;
        dinp[at] = to_real((dy * to_float(weight[i]) - a - norm * b) * r);
        atomicAdd(&dweight[i], dy * norm);
        atomicAdd(&dbias[i], dy);
    }
}
