// layernorm backward, rung 1: one thread per row, global atomics
// Before: the NumPy reference.
// Change: one thread for each of the N rows. With norm = (inp - mean) * rstd and
//         dnorm = dout * weight:
//             dinp = rstd * (dnorm - average(dnorm) - norm * average(dnorm * norm));
//             dweight += sum over the rows of dout * norm; dbias += sum over the rows of dout.
//         All rows add to the same 2*C sums, so the additions must be atomic: read, add and write
//         in one step.
// Expect: far below the roof (the bandwidth of a plain copy). The lanes of a warp read addresses C
//         apart, which is not coalesced. They add to the same address at the same time, where
//         atomics are executed one after the other.
// Needs:  nothing
// Define: BLOCK = 128
// Launch: layernorm_backward<<<ceil_div(N, BLOCK), BLOCK>>>
// Deterministic: no, float atomics land in any order
// Left:   far-apart addresses, colliding atomics -> rung 2.

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
    int row = blockIdx.x * BLOCK + threadIdx.x;
    if (row >= N) return;  // the last block may have more threads than there are rows left
    const real* dy = dout + (size_t)row * C;  // (C)
    const real* x = inp + (size_t)row * C;    // (C)
    real* dx = dinp + (size_t)row * C;        // (C)
    float m = mean[row], r = rstd[row];

    float a = 0.0f, b = 0.0f;  // sums, then averages, of dnorm and of dnorm * norm
    for (int i = 0; i < C; i++) {
        float norm = (to_float(x[i]) - m) * r;
        float dnorm = to_float(dy[i]) * to_float(weight[i]);
        a += dnorm;
        b += dnorm * norm;
    }
    a /= C;
    b /= C;

    for (int i = 0; i < C; i++) {
        float norm = (to_float(x[i]) - m) * r;
        float dnorm = to_float(dy[i]) * to_float(weight[i]);
        dx[i] = to_real((dnorm - a - norm * b) * r);
        atomicAdd(&dweight[i], to_float(dy[i]) * norm);
        atomicAdd(&dbias[i], to_float(dy[i]));
    }
}
