// residual_layernorm forward, rung 1: unfused, two kernels
// Before: the NumPy reference.
// Change: the unfused sequence: one kernel adds, one thread per element, and stores the sum.
//         Another kernel loads the sum and normalises it, one warp per row.
// Expect: both are bound by memory: 3*N*C elements for the sum, 2*N*C for the norm. Together the
//         two need only 4*N*C: what the first kernel stores, the second loads again.
// Needs:  nothing
// Define: BLOCK = 256; ROWS = 4
// Launch: residual_layernorm_forward_sum<<<ceil_div(N * C, BLOCK), BLOCK>>>
// Launch: residual_layernorm_forward<<<ceil_div(N, ROWS), ROWS * warp>>>
// Left:   the sum goes through memory before it is normalised -> rung 2.

#include "portable.cuh"

constexpr float EPS = 1e-5f;  // keeps rstd finite where a row is constant

extern "C" __global__ void residual_layernorm_forward_sum(
    real* __restrict__ residual,    // (N, C)
    const real* __restrict__ inp1,  // (N, C)
    const real* __restrict__ inp2,  // (N, C)
    int N, int C) {
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= (size_t)N * C) return;  // the last block may have more threads than elements are left
    residual[i] = to_real(to_float(inp1[i]) + to_float(inp2[i]));
}

extern "C" __global__ void residual_layernorm_forward(
    real* __restrict__ residual,      // (N, C)  read here
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
    const real* x = residual + (size_t)row * C;  // (C)
    real* y = out + (size_t)row * C;             // (C)

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
