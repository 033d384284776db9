// layernorm forward, rung 4: one-pass mean and variance (Welford)
// Before: rung 3 reads a row three times: for the mean, for the variance, for the output.
// Change: Welford's algorithm updates the mean, and the sum of squared distances from it, in the
//         same pass. The shorter formula E[x^2] - E[x]^2 subtracts two nearly equal values where
//         the mean is large (cancellation): with mean 1000 and deviation 1, float32 keeps no digit
//         of the variance. Sums of x - x[0] are accurate only if x[0] is no outlier. Welford's
//         algorithm needs no such value, and loses far fewer digits than the shorter formula.
// Expect: two reads of the row instead of three, but one division per element, and each division
//         depends on the one before. The saved reads were hits in the L1 cache.
// Needs:  nothing
// Define: ROWS = 4
// Launch: layernorm_forward<<<ceil_div(N, ROWS), ROWS * warp>>>
// Pays:   no, the loop is unrolled by 4 instead of 16, so fewer loads are in flight
// After:  3
// Left:   loads are 2 or 4 bytes wide -> rung 5.

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

    // Of the channels that this lane has read: their number, mean, and squared distances from it.
    float count = 0.0f, lane_mean = 0.0f, squares = 0.0f;
    for (int i = lane; i < C; i += WARP_SIZE) {
        float value = to_float(x[i]);
        float before = value - lane_mean;
        count += 1.0f;
        lane_mean += before / count;
        squares += before * (value - lane_mean);
    }
    // Of the row: the squared distances within the lanes, plus those of the means of the lanes.
    float m = warp_sum(count * lane_mean) / C;
    squares += count * (lane_mean - m) * (lane_mean - m);
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
