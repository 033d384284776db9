// layernorm backward, rung 4: two-stage reduction in a fixed order, no atomics
// Before: rung 3 adds with atomics, in whatever order the warps and blocks arrive.
// Change: each warp has its own copy of the sums in shared memory. A block adds the copies of its
//         warps and writes the result to scratch memory. A second kernel adds the results of the
//         blocks. All additions are in a fixed order, so every launch gives the same bits.
// Expect: plain additions instead of compare-and-swap loops. The scratch memory is small compared
//         to N*C.
// Needs:  ROWS * 8 * C <= shared_bytes
// Define: ROWS = 4; BLOCKS = 4; GRID = min(ceil_div(N, ROWS), BLOCKS * multiprocessors);
//         GROUPS = 1024 // warp
// Launch: layernorm_backward<<<GRID, ROWS * warp, ROWS * 8 * C>>>
// Launch: layernorm_backward_finish<<<ceil_div(2 * C, warp), GROUPS * warp>>>
// Scratch: float32 partial[GRID, 2, C]
// Pays:   no, with half of the warps of rung 3 on an SM
// After:  3
// Left:   every row loads and stores 2*C sums in shared memory -> rung 5.

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
    int N, int C,
    float* __restrict__ partial) {    // (GRID, 2, C)  dweight and dbias of each block's rows
    extern __shared__ float sums[];   // (ROWS, 2, C)  of each warp's rows
    int lane = lane_id();
    float* dw = sums + warp_id() * 2 * C;  // (C)
    float* db = dw + C;                    // (C)
    for (int i = lane; i < C; i += WARP_SIZE) {
        dw[i] = 0.0f;  // no barrier: here and below, only this lane accesses channel i
        db[i] = 0.0f;
    }

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
            dw[i] += to_float(dy[i]) * norm;
            db[i] += to_float(dy[i]);
        }
    }

    __syncthreads();  // every warp has added its last row before the sums are read
    for (int i = threadIdx.x; i < 2 * C; i += ROWS * WARP_SIZE) {
        float sum = 0.0f;
        for (int warp = 0; warp < ROWS; warp++) {
            sum += sums[warp * 2 * C + i];
        }
        partial[(size_t)blockIdx.x * 2 * C + i] = sum;
    }
}

// Adds the GRID rows of `partial` to dweight (C) and dbias (C). A block takes WARP_SIZE
// neighbouring columns. Its GROUPS warps share the rows: one thread alone would wait for GRID loads
// in turn.
extern "C" __global__ void layernorm_backward_finish(
    float* __restrict__ dweight, float* __restrict__ dbias, int N, int C,
    const float* __restrict__ partial) {
    __shared__ float sums[GROUPS][WARP_SIZE];
    int lane = lane_id(), group = warp_id();
    int column = blockIdx.x * WARP_SIZE + lane;  // of (2, C): dweight, then dbias

    float sum = 0.0f;
    for (int block = group; block < GRID && column < 2 * C; block += GROUPS) {
        sum += partial[(size_t)block * 2 * C + column];
    }
    sums[group][lane] = sum;
    __syncthreads();  // all warps have written their sums before the first warp adds them

    if (group > 0 || column >= 2 * C) return;
    sum = 0.0f;
    for (int other = 0; other < GROUPS; other++) {
        sum += sums[other][lane];
    }
    if (column < C) {
        dweight[column] += sum;
    } else {
        dbias[column - C] += sum;
    }
}
