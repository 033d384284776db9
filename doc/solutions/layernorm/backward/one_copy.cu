// layernorm backward: one copy of the sums, and a second barrier
// Needs:  C % vector == 0; WARPS * warp <= 1024
// Define: ROWS = 3; CHANNELS = C; WARPS = ceil_div(C, vector * warp); BLOCKS = max(1, 16 // WARPS);
//         GRID = min(ceil_div(N, ROWS), BLOCKS * multiprocessors); GROUPS = 1024 // warp
// Launch: layernorm_backward<<<GRID, WARPS * warp>>>
// Launch: layernorm_backward_finish<<<ceil_div(2 * C, warp), GROUPS * warp>>>
// Scratch: float32 partial[GRID, 2, C]
// After:  8

#include "portable.cuh"

// The launch bounds limit the registers of a thread, so that BLOCKS blocks fit on an SM at once.
extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE, BLOCKS) layernorm_backward(
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
    C = CHANNELS;  // a compile-time constant: loops unroll, checks that always hold vanish
    __shared__ float sums[ROWS][2][WARPS];  // of dnorm and dnorm * norm, per warp
    int lane = lane_id(), warp = warp_id();
    int i = threadIdx.x * VECTOR;  // this thread's channels are i to i + VECTOR - 1
    bool inside = i < C;           // the last warp may reach past the row's end
    i = min(i, C - VECTOR);
    Vec weights = load_vec(weight + i);
    float w[VECTOR], dw[VECTOR] = {}, db[VECTOR] = {};
    for (int k = 0; k < VECTOR; k++) {
        w[k] = inside ? to_float(weights[k]) : 0.0f;  // 0 adds nothing to the row's sums
    }
    for (int first = blockIdx.x * ROWS; first < N; first += gridDim.x * ROWS) {
        // Past the last row or channel, the last one is loaded again: without a branch, all loads
        // start at once.
        Vec dys[ROWS], xs[ROWS];
        float m[ROWS], r[ROWS];
#pragma unroll  // as all loops over q: an array with a run-time index cannot be in registers
        for (int q = 0; q < ROWS; q++) {
            int row = min(first + q, N - 1);
            dys[q] = load_vec(dout + (size_t)row * C + i);
            xs[q] = load_vec(inp + (size_t)row * C + i);
            m[q] = mean[row];
            r[q] = rstd[row];
        }

#pragma unroll
        for (int q = 0; q < ROWS; q++) {
            float a = 0.0f, b = 0.0f;  // sums, then averages, of dnorm and of dnorm * norm
            for (int k = 0; k < VECTOR; k++) {
                float norm = (to_float(xs[q][k]) - m[q]) * r[q];
                float dnorm = to_float(dys[q][k]) * w[k];
                a += dnorm;
                b += dnorm * norm;
            }
            a = warp_sum(a);
            b = warp_sum(b);
            if (lane == 0) {
                sums[q][0][warp] = a;
                sums[q][1][warp] = b;
            }
        }
        __syncthreads();  // all warps have written their sums before any thread reads them

#pragma unroll
        for (int q = 0; q < ROWS; q++) {
            if (!inside || first + q >= N) break;  // was loaded again: is not counted
            float a = 0.0f, b = 0.0f;
            for (int other = 0; other < WARPS; other++) {
                a += sums[q][0][other];
                b += sums[q][1][other];
            }
            a *= 1.0f / CHANNELS;
            b *= 1.0f / CHANNELS;

            Vec dxs;
            for (int k = 0; k < VECTOR; k++) {
                float norm = (to_float(xs[q][k]) - m[q]) * r[q];
                float dnorm = to_float(dys[q][k]) * w[k];
                dxs[k] = to_real((dnorm - a - norm * b) * r[q]);
                dw[k] += to_float(dys[q][k]) * norm;
                db[k] += to_float(dys[q][k]);
            }
            store_vec(dinp + (size_t)(first + q) * C + i, dxs);
        }
        __syncthreads();  // all have read the sums before the next step overwrites them
    }

    for (int k = 0; k < VECTOR && inside; k++) {
        partial[(size_t)blockIdx.x * 2 * C + i + k] = dw[k];
        partial[(size_t)blockIdx.x * 2 * C + C + i + k] = db[k];
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
