// layernorm forward, rung 3: one warp per row, warp shuffle reduction
// Before: rung 2 reduces through shared memory, with a barrier per step.
// Change: one warp per row. Its lanes add their partial sums with shuffles, which read the register
//         of another lane (warp_sum). The ROWS warps of a block never wait for each other.
// Expect: no shared memory and no barrier. While one warp reduces, others load.
// Needs:  nothing
// Define: ROWS = 4
// Launch: layernorm_forward<<<ceil_div(N, ROWS), ROWS * warp>>>
// After:  2
// Left:   the row is read three times -> rung 4.

#include "portable.cuh"

constexpr float EPS = 1e-5f;  // keeps rstd finite where a row is constant

extern "C" __global__ void layernorm_forward(
    real* __restrict__ out,           // (N, C)
    float* __restrict__ mean,         // (N)
    float* __restrict__ rstd,         // (N)  1 / standard deviation
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (C)
    const real* __restrict__ bias,    // (C)
    int N, int C) {
    int lane = lane_id();
    int row = blockIdx.x * ROWS + warp_id();
    if (row >= N) return;  // the whole warp returns, so no shuffle below misses a lane
    const real* x = inp + (size_t)row * C;  // (C)
    real* y = out + (size_t)row * C;        // (C)

    float sum = 0.0f;
    for (int i = lane; i < C; i += WARP_SIZE) {
        sum += to_float(x[i]);
    }
    float m = warp_sum(sum) / C;

    float squares = 0.0f;
    for (int i = lane; i < C; i += WARP_SIZE) {
        float centred = to_float(x[i]) - m;
        squares += centred * centred;
    }
    float r = rsqrtf(warp_sum(squares) / C + EPS);

    for (int i = lane; i < C; i += WARP_SIZE) {
        float normalised = (to_float(x[i]) - m) * r;
        y[i] = to_real(normalised * to_float(weight[i]) + to_float(bias[i]));
    }
    if (lane == 0) {
        mean[row] = m;
        rstd[row] = r;
    }
}
