// residual_layernorm backward, rung 3: accumulators in registers
// Before: rung 2 loads, adds and stores 2*C sums in shared memory for every row.
// Change: a lane has the same channels in every row, so it accumulates their sums in registers, and
//         adds them to shared memory once, at the end. The loops are compiled for this C and
//         unrolled, because an array with a run-time index cannot be kept in registers.
// Expect: per row, only loads, arithmetic and stores remain. In the unrolled loops, the loads of
//         dinp need not wait for the averages.
// Needs:  LANE_CHANNELS <= 32
// Define: ROWS = 4; CHANNELS = C; LANE_CHANNELS = ceil_div(C, warp);
//         BLOCKS = max(2, min(4, 84 // LANE_CHANNELS));
//         GRID = min(ceil_div(N, ROWS), BLOCKS * multiprocessors); GROUPS = 1024 // warp
// Launch: residual_layernorm_backward<<<GRID, ROWS * warp>>>
// Launch: residual_layernorm_backward_finish<<<ceil_div(2 * C, warp), GROUPS * warp>>>
// Scratch: float32 partial[GRID, 2, C]
// After:  2
// Left:   loads are 2 or 4 bytes wide -> rung 4.

#include "portable.cuh"

// The launch bounds limit the registers of a thread, so that BLOCKS blocks fit on an SM at once.
extern "C" __global__ void __launch_bounds__(ROWS * WARP_SIZE, BLOCKS)
residual_layernorm_backward(
    real* __restrict__ dinp,          // (N, C)  accumulates
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
    __shared__ float sums[2 * CHANNELS];  // (2, C)  of the block's rows
    int lane = lane_id();
    float dw[LANE_CHANNELS] = {}, db[LANE_CHANNELS] = {};  // of channels lane + j * WARP_SIZE

    for (int row = blockIdx.x * ROWS + warp_id(); row < N; row += gridDim.x * ROWS) {
        const real* dy = dout + (size_t)row * C;  // (C)
        const real* x = inp + (size_t)row * C;    // (C)
        real* dx = dinp + (size_t)row * C;        // (C)
        float m = mean[row], r = rstd[row];

        float a = 0.0f, b = 0.0f;  // sums, then averages, of dnorm and of dnorm * norm
#pragma unroll
        for (int j = 0; j < LANE_CHANNELS; j++) {
            int i = j * WARP_SIZE + lane;
            if (i >= C) break;  // past the row's end
            float norm = (to_float(x[i]) - m) * r;
            float dnorm = to_float(dy[i]) * to_float(weight[i]);
            a += dnorm;
            b += dnorm * norm;
        }
        a = warp_sum(a) * (1.0f / CHANNELS);
        b = warp_sum(b) * (1.0f / CHANNELS);

#pragma unroll
        for (int j = 0; j < LANE_CHANNELS; j++) {
            int i = j * WARP_SIZE + lane;
            if (i >= C) break;  // past the row's end
            float norm = (to_float(x[i]) - m) * r;
            float dnorm = to_float(dy[i]) * to_float(weight[i]);
            dx[i] = to_real(to_float(dx[i]) + (dnorm - a - norm * b) * r);
            dw[j] += to_float(dy[i]) * norm;
            db[j] += to_float(dy[i]);
        }
    }

    for (int turn = 0; turn < ROWS; turn++) {
        if (warp_id() == turn) {
#pragma unroll
            for (int j = 0; j < LANE_CHANNELS; j++) {
                int i = j * WARP_SIZE + lane;
                if (i >= C) break;
                sums[i] = turn == 0 ? dw[j] : sums[i] + dw[j];
                sums[C + i] = turn == 0 ? db[j] : sums[C + i] + db[j];
            }
        }
        __syncthreads();  // the sums of this warp are written before the next warp adds to them
    }
    for (int i = threadIdx.x; i < 2 * C; i += ROWS * WARP_SIZE) {
        partial[(size_t)blockIdx.x * 2 * C + i] = sums[i];
    }
}

// Adds the GRID rows of `partial` to dweight (C) and dbias (C). A block takes WARP_SIZE
// neighbouring columns. Its GROUPS warps share the rows: one thread alone would wait for GRID loads
// in turn.
extern "C" __global__ void residual_layernorm_backward_finish(
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
