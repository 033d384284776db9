// residual_layernorm forward, rung 2: fused into one kernel
// Before: the second kernel of rung 1 loads from memory what the first one has stored there.
// Change: kernel fusion: the warp that normalises a row adds it, too. The first pass over the row,
//         which only summed it, now also computes its elements, and stores them for the later
//         passes.
// Expect: 4*N*C elements through memory instead of 5*N*C: the later passes find the row in the L1
//         cache, as a lane reads back only what it has stored itself. One launch instead of two.
// Needs:  nothing
// Define: ROWS = 4
// Launch: residual_layernorm_forward<<<ceil_div(N, ROWS), ROWS * warp>>>
// After:  1
// Left:   loads are 2 or 4 bytes wide, and the row is read back twice -> rung 3.

#include "portable.cuh"

constexpr float EPS = 1e-5f;  // keeps rstd finite where a row is constant

extern "C" __global__ void residual_layernorm_forward(
    real* __restrict__ residual,      // (N, C)
    real* __restrict__ out,           // (N, C)
    float* __restrict__ mean,         // (N)
    float* __restrict__ rstd,         // (N)  1 / standard deviation
    const real* __restrict__ inp1,    // (N, C)
    const real* __restrict__ inp2,    // (N, C)
    const real* __restrict__ weight,  // (C)
    const real* __restrict__ bias,    // (C)
    int N, int C) {
    int lane = lane_id();
    int row = blockIdx.x * ROWS + warp_id();
    if (row >= N) return;  // the whole warp returns, so no shuffle below misses a lane
    const real* stream = inp1 + (size_t)row * C;  // (C)
    const real* branch = inp2 + (size_t)row * C;  // (C)
    real* x = residual + (size_t)row * C;         // (C)
    real* y = out + (size_t)row * C;              // (C)

    float sum = 0.0f;
    for (int i = lane; i < C; i += WARP_SIZE) {
        x[i] = to_real(to_float(stream[i]) + to_float(branch[i]));
        sum += to_float(x[i]);  // rounded: backward needs the mean of what is stored
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
