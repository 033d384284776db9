// layernorm backward, rung 7: double buffering in registers, next row prefetched
// Before: in rung 6, a warp loads a row, waits, reduces and stores. Only then does it load the next
//         row. Its many registers leave room for few warps, so that no others fill the gap.
// Change: double buffering: the warp first starts the loads of the next row, into a second set of
//         registers. Then it works on the current row.
// Expect: every warp always has a row in flight, but the second set makes registers even scarcer.
// Needs:  C % vector == 0; ROW_VECTORS * vector <= (32 if sizeof_real == 2 else 24)
// Define: ROWS = 4; CHANNELS = C; ROW_VECTORS = ceil_div(C, vector * warp);
//         SLOTS = ROW_VECTORS * vector * warp;
//         BLOCKS = max(2, min(4, 56 // (ROW_VECTORS * vector)));
//         GRID = min(ceil_div(N, ROWS), BLOCKS * multiprocessors); GROUPS = 1024 // warp
// Launch: layernorm_backward<<<GRID, ROWS * warp>>>
// Launch: layernorm_backward_finish<<<2 * SLOTS // warp, GROUPS * warp>>>
// Scratch: float32 partial[GRID, 2, SLOTS]
// Pays:   no, the second set of registers leaves room for fewer warps
// After:  6
// Left:   a lane holds the sums of C / WARP_SIZE channels: registers limit the warps -> rung 8.

#include "portable.cuh"

// Starts the loads of this lane's part of the row x (C).
__device__ __forceinline__ void load_row(Vec (&xs)[ROW_VECTORS], const real* x, int C) {
#pragma unroll  // as all loops over j: an array with a run-time index cannot be in registers
    for (int j = 0; j < ROW_VECTORS; j++) {
        int i = (j * WARP_SIZE + lane_id()) * VECTOR;
        if (i >= C) break;  // past the row's end
        xs[j] = load_vec(x + i);
    }
}

// The launch bounds limit the registers of a thread, so that BLOCKS blocks fit on an SM at once.
extern "C" __global__ void __launch_bounds__(ROWS * WARP_SIZE, BLOCKS) layernorm_backward(
    real* __restrict__ dinp,          // (N, C)
    float* __restrict__ dweight,      // (C)  accumulates
    float* __restrict__ dbias,        // (C)  accumulates
    const real* __restrict__ dout,    // (N, C)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (C)
    const float* __restrict__ mean,   // (N)
    const float* __restrict__ rstd,   // (N)
    int N, int C,
    float* __restrict__ partial) {    // (GRID, 2, SLOTS)  dweight and dbias of each block's rows
    C = CHANNELS;  // a compile-time constant: loops unroll, checks that always hold vanish
    __shared__ float sums[2 * SLOTS];  // (2, SLOTS)  of the block's rows
    int lane = lane_id();
    float dw[ROW_VECTORS][VECTOR] = {}, db[ROW_VECTORS][VECTOR] = {};

    int row = blockIdx.x * ROWS + warp_id(), stride = gridDim.x * ROWS;
    Vec dys[ROW_VECTORS], xs[ROW_VECTORS], next_dys[ROW_VECTORS], next_xs[ROW_VECTORS];
    float next_m, next_r;
    if (row < N) {
        next_m = mean[row];
        next_r = rstd[row];
        load_row(next_dys, dout + (size_t)row * C, C);
        load_row(next_xs, inp + (size_t)row * C, C);
    }
    for (; row < N; row += stride) {
        real* dx = dinp + (size_t)row * C;  // (C)
        float m = next_m, r = next_r;
#pragma unroll
        for (int j = 0; j < ROW_VECTORS; j++) {
            dys[j] = next_dys[j];
            xs[j] = next_xs[j];
        }
        if (row + stride < N) {
            next_m = mean[row + stride];
            next_r = rstd[row + stride];
            load_row(next_dys, dout + (size_t)(row + stride) * C, C);
            load_row(next_xs, inp + (size_t)(row + stride) * C, C);
        }

        float a = 0.0f, b = 0.0f;  // sums, then averages, of dnorm and of dnorm * norm
#pragma unroll
        for (int j = 0; j < ROW_VECTORS; j++) {
            int i = (j * WARP_SIZE + lane) * VECTOR;
            if (i >= C) break;
            Vec w = load_vec(weight + i);
            for (int k = 0; k < VECTOR; k++) {
                float norm = (to_float(xs[j][k]) - m) * r;
                float dnorm = to_float(dys[j][k]) * to_float(w[k]);
                a += dnorm;
                b += dnorm * norm;
            }
        }
        a = warp_sum(a) * (1.0f / CHANNELS);
        b = warp_sum(b) * (1.0f / CHANNELS);

#pragma unroll
        for (int j = 0; j < ROW_VECTORS; j++) {
            int i = (j * WARP_SIZE + lane) * VECTOR;
            if (i >= C) break;
            Vec w = load_vec(weight + i), dxs;
            for (int k = 0; k < VECTOR; k++) {
                float norm = (to_float(xs[j][k]) - m) * r;
                float dnorm = to_float(dys[j][k]) * to_float(w[k]);
                dxs[k] = to_real((dnorm - a - norm * b) * r);
                dw[j][k] += to_float(dys[j][k]) * norm;
                db[j][k] += to_float(dys[j][k]);
            }
            store_vec(dx + i, dxs);
        }
    }

    for (int turn = 0; turn < ROWS; turn++) {
        if (warp_id() == turn) {
#pragma unroll
            for (int j = 0; j < ROW_VECTORS; j++) {
                for (int k = 0; k < VECTOR; k++) {
                    int s = (j * VECTOR + k) * WARP_SIZE + lane;  // a slot, not a channel:
                    sums[s] = turn == 0 ? dw[j][k] : sums[s] + dw[j][k];  // no bank conflicts
                    sums[SLOTS + s] = turn == 0 ? db[j][k] : sums[SLOTS + s] + db[j][k];
                }
            }
        }
        __syncthreads();  // the sums of this warp are written before the next warp adds to them
    }
    for (int s = threadIdx.x; s < 2 * SLOTS; s += ROWS * WARP_SIZE) {
        partial[(size_t)blockIdx.x * 2 * SLOTS + s] = sums[s];
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
    int column = blockIdx.x * WARP_SIZE + lane;  // of (2, SLOTS): dweight, then dbias

    float sum = 0.0f;
    for (int block = group; block < GRID; block += GROUPS) {
        sum += partial[(size_t)block * 2 * SLOTS + column];
    }
    sums[group][lane] = sum;
    __syncthreads();  // all warps have written their sums before the first warp adds them

    int s = column % SLOTS, j = s / (VECTOR * WARP_SIZE), k = s / WARP_SIZE % VECTOR;
    int i = (j * WARP_SIZE + lane) * VECTOR + k;  // the channel of this slot
    if (group > 0 || i >= C) return;
    sum = 0.0f;
    for (int other = 0; other < GROUPS; other++) {
        sum += sums[other][lane];
    }
    if (column < SLOTS) {
        dweight[i] += sum;
    } else {
        dbias[i] += sum;
    }
}
