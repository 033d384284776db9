// layernorm forward: the variance from sums of x - x[0], in one pass
// Needs:  nothing
// Define: ROWS = 4
// Launch: layernorm_forward<<<ceil_div(N, ROWS), ROWS * warp>>>
// After:  3

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

    float shift = to_float(x[0]), sum = 0.0f, squares = 0.0f;  // of x - shift
    for (int i = lane; i < C; i += WARP_SIZE) {
        float shifted = to_float(x[i]) - shift;
        sum += shifted;
        squares += shifted * shifted;
    }
    float average = warp_sum(sum) / C, m = shift + average;
    float variance = fmaxf(warp_sum(squares) / C - average * average, 0.0f);
    float r = rsqrtf(variance + EPS);

    for (int i = lane; i < C; i += WARP_SIZE) {
        float normalised = (to_float(x[i]) - m) * r;
        y[i] = to_real(normalised * to_float(weight[i]) + to_float(bias[i]));
    }
    if (lane == 0) {
        mean[row] = m;
        rstd[row] = r;
    }
}
