// residual_layernorm forward: the row is kept in shared memory
// Needs:  ROWS * C * sizeof_real <= shared_bytes
// Define: ROWS = 4
// Launch: residual_layernorm_forward<<<ceil_div(N, ROWS), ROWS * warp, ROWS * C * sizeof_real>>>
// After:  2

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
    extern __shared__ real rows[];  // (ROWS, C)  each lane reads what it has stored itself
    int lane = lane_id();
    int row = blockIdx.x * ROWS + warp_id();
    if (row >= N) return;  // the whole warp returns, so no shuffle below misses a lane
    const real* stream = inp1 + (size_t)row * C;  // (C)
    const real* branch = inp2 + (size_t)row * C;  // (C)
    real* x = residual + (size_t)row * C;         // (C)
    real* kept = rows + warp_id() * C;            // (C)
    real* y = out + (size_t)row * C;              // (C)

    float sum = 0.0f;
    for (int i = lane; i < C; i += WARP_SIZE) {
        real rounded = to_real(to_float(stream[i]) + to_float(branch[i]));
        x[i] = kept[i] = rounded;
        sum += to_float(rounded);  // backward needs the mean of what is stored
    }
    float m = warp_sum(sum) / C;

    float squares = 0.0f;
    for (int i = lane; i < C; i += WARP_SIZE) {
        float centred = to_float(kept[i]) - m;
        squares += centred * centred;
    }
    float r = rsqrtf(warp_sum(squares) / C + EPS);

    for (int i = lane; i < C; i += WARP_SIZE) {
        float normalised = (to_float(kept[i]) - m) * r;
        y[i] = to_real(normalised * to_float(weight[i]) + to_float(bias[i]));
    }
    if (lane == 0) {
        mean[row] = m;
        rstd[row] = r;
    }
}
