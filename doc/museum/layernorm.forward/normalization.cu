// layernorm forward: statistics by one kernel, normalization by another, a thread per element
// Needs:  real == float32
// Define: THREADS = 256; WARPS = THREADS // warp
// Launch: layernorm_statistics<<<ceil_div(N, WARPS), THREADS>>>
// Launch: layernorm_forward<<<ceil_div(N * C, THREADS), THREADS>>>

#include "portable.cuh"

constexpr float EPS = 1e-5f;

extern "C" __global__ void layernorm_statistics(
    float* __restrict__ mean,      // (N)
    float* __restrict__ rstd,      // (N)
    const real* __restrict__ inp,  // (N, C)
    int N, int C) {
    int row = blockIdx.x * WARPS + warp_id();
    if (row >= N) return;  // the whole warp
    const real* x = inp + (size_t)row * C;  // (C)
    float sum = 0.0f, squares = 0.0f;
    for (int i = lane_id(); i < C; i += WARP_SIZE) sum += x[i];
    float m = warp_sum(sum) / C;
    for (int i = lane_id(); i < C; i += WARP_SIZE) squares += (x[i] - m) * (x[i] - m);
    squares = warp_sum(squares);
    if (lane_id() == 0) {
        mean[row] = m;
        rstd[row] = rsqrtf(squares / C + EPS);
    }
}

extern "C" __global__ void layernorm_forward(
    real* __restrict__ out,            // (N, C)
    const float* __restrict__ mean,    // (N)
    const float* __restrict__ rstd,    // (N)
    const real* __restrict__ inp,      // (N, C)
    const real* __restrict__ weight,   // (C)
    const real* __restrict__ bias,     // (C)
    int N, int C) {
    int i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= N * C) return;  // the last block has more threads than there are elements left
    int row = i / C, c = i % C;
    out[i] = (inp[i] - mean[row]) * rstd[row] * weight[c] + bias[c];
}
