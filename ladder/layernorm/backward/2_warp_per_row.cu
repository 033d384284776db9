// layernorm backward, rung 2: one warp per row, coalesced atomics
// Before: in rung 1, the lanes of a warp read addresses C apart, and all add to one address.
// Change: the lanes of a warp share a row. Neighbouring lanes load neighbouring channels, and add
//         to neighbouring sums: loads and atomics are coalesced. The two averages are reduced with
//         warp shuffles (warp_sum).
// Expect: full sectors, and one atomic request per warp for many channels. There are still 2*C
//         atomics per row, and all N rows add to the same 2*C addresses. The atomics are the bound,
//         not the memory.
// Needs:  nothing
// Define: ROWS = 4
// Launch: layernorm_backward<<<ceil_div(N, ROWS), ROWS * warp>>>
// Deterministic: no, float atomics land in any order
// After:  1
// Left:   2*N*C atomics on 2*C addresses -> rung 3.

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
    int lane = lane_id();
    int row = blockIdx.x * ROWS + warp_id();
    if (row >= N) return;  // the whole warp returns, so no shuffle below misses a lane
    const real* dy = dout + (size_t)row * C;  // (C)
    const real* x = inp + (size_t)row * C;    // (C)
    real* dx = dinp + (size_t)row * C;        // (C)
    float m = mean[row], r = rstd[row];

    float a = 0.0f, b = 0.0f;  // sums, then averages, of dnorm and of dnorm * norm
    for (int i = lane; i < C; i += WARP_SIZE) {
        float norm = (to_float(x[i]) - m) * r;
        float dnorm = to_float(dy[i]) * to_float(weight[i]);
        a += dnorm;
        b += dnorm * norm;
    }
    a = warp_sum(a) / C;
    b = warp_sum(b) / C;

    for (int i = lane; i < C; i += WARP_SIZE) {
        float norm = (to_float(x[i]) - m) * r;
        float dnorm = to_float(dy[i]) * to_float(weight[i]);
        dx[i] = to_real((dnorm - a - norm * b) * r);
        atomicAdd(&dweight[i], to_float(dy[i]) * norm);
        atomicAdd(&dbias[i], to_float(dy[i]));
    }
}
