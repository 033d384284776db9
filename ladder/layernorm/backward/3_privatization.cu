// layernorm backward, rung 3: privatization, one copy of the sums per block
// Before: rung 2 sends 2*C atomics per row to the L2 cache, all to the same addresses.
// Change: privatization: each block has its own copy of the sums in shared memory. A fixed grid of
//         blocks takes many rows each, and the 2*C global atomics come once per block, no longer
//         once per row.
// Expect: the atomics of different SMs (streaming multiprocessors) no longer collide. But shared
//         memory has no atomic float addition: a compare-and-swap loop repeats until it succeeds.
// Needs:  8 * C <= shared_bytes
// Define: ROWS = 4; BLOCKS = 8
// Launch: layernorm_backward<<<min(ceil_div(N, ROWS), BLOCKS * multiprocessors), ROWS * warp,
//         8 * C>>>
// Deterministic: no, float atomics land in any order
// After:  2
// Left:   the sum depends on the order in which warps and blocks arrive -> rung 4.

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
    extern __shared__ float sums[];  // (2, C)  dweight and dbias of this block's rows
    for (int i = threadIdx.x; i < 2 * C; i += ROWS * WARP_SIZE) {
        sums[i] = 0.0f;
    }
    __syncthreads();  // all sums are zero before any warp adds to them

    int lane = lane_id();
    for (int row = blockIdx.x * ROWS + warp_id(); row < N; row += gridDim.x * ROWS) {
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
            atomicAdd(&sums[i], to_float(dy[i]) * norm);
            atomicAdd(&sums[C + i], to_float(dy[i]));
        }
    }

    __syncthreads();  // every warp has added its last row before the sums are read
    for (int i = threadIdx.x; i < C; i += ROWS * WARP_SIZE) {
        atomicAdd(&dweight[i], sums[i]);
        atomicAdd(&dbias[i], sums[C + i]);
    }
}
