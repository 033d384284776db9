// residual_layernorm forward: the exact sum is normalised
// Needs:  C % vector == 0; ROW_VECTORS <= 16
// Define: ROWS = 4; CHANNELS = C; ROW_VECTORS = ceil_div(C, vector * warp)
// Launch: residual_layernorm_forward<<<ceil_div(N, ROWS), ROWS * warp>>>
// After:  3

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
    C = CHANNELS;  // a compile-time constant: loops unroll, checks that always hold vanish
    int lane = lane_id();
    int row = blockIdx.x * ROWS + warp_id();
    if (row >= N) return;  // the whole warp returns, so no shuffle below misses a lane
    const real* stream = inp1 + (size_t)row * C;  // (C)
    const real* branch = inp2 + (size_t)row * C;  // (C)
    real* x = residual + (size_t)row * C;         // (C)
    real* y = out + (size_t)row * C;              // (C)

    // All loops over j are unrolled: an array with a run-time index cannot be in registers.
    float exact[ROW_VECTORS][VECTOR];
    Vec xs[ROW_VECTORS], added[ROW_VECTORS];
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        int i = (j * WARP_SIZE + lane) * VECTOR;
        if (i >= C) break;  // past the row's end
        xs[j] = load_vec(stream + i);
        added[j] = load_vec(branch + i);
    }

    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        int i = (j * WARP_SIZE + lane) * VECTOR;
        if (i >= C) break;
        for (int k = 0; k < VECTOR; k++) {
            exact[j][k] = to_float(xs[j][k]) + to_float(added[j][k]);
            xs[j][k] = to_real(exact[j][k]);
            sum += exact[j][k];
        }
        store_vec(x + i, xs[j]);
    }
    float m = warp_sum(sum) * (1.0f / CHANNELS);

    float squares = 0.0f;
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        int i = (j * WARP_SIZE + lane) * VECTOR;
        if (i >= C) break;
        for (int k = 0; k < VECTOR; k++) {
            float centred = exact[j][k] - m;
            squares += centred * centred;
        }
    }
    float r = rsqrtf(warp_sum(squares) * (1.0f / CHANNELS) + EPS);

#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        int i = (j * WARP_SIZE + lane) * VECTOR;
        if (i >= C) break;
        Vec w = load_vec(weight + i), b = load_vec(bias + i), ys;
        for (int k = 0; k < VECTOR; k++) {
            float normalised = (exact[j][k] - m) * r;
            ys[k] = to_real(normalised * to_float(w[k]) + to_float(b[k]));
        }
        store_vec(y + i, ys);
    }
    if (lane == 0) {
        mean[row] = m;
        rstd[row] = r;
    }
}
