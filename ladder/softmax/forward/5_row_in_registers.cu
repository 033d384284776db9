// softmax forward, rung 5: one warp per row, row cached in registers
// Before: rung 4 gives a block to each row, reads the row twice, and waits at four barriers.
// Change: one warp per row. Its lanes keep their ROW_VECTORS vectors in registers. With the whole
//         row there, the maximum is computed first again, and nothing is rescaled.
// Expect: all loads of a row are in flight together. Each byte is read once, and no barrier is
//         left. Registers are few: this works only for rows of up to some thousand columns.
// Needs:  V % vector == 0; ROW_VECTORS <= 16
// Define: ROWS = 4; COLUMNS = V; ROW_VECTORS = ceil_div(V, vector * warp)
// Launch: softmax_forward<<<ceil_div(N, ROWS), ROWS * warp>>>
// After:  4
// Left:   rows too long for the registers of a warp could stay in shared memory.

#include "portable.cuh"

// The lowest finite float. Not -INFINITY: the difference of two of those is NaN.
constexpr float LOWEST = -3.402823466e38f;

extern "C" __global__ void softmax_forward(
    real* __restrict__ probs,         // (N, V)
    const real* __restrict__ logits,  // (N, V)
    int N, int V) {
    V = COLUMNS;  // a compile-time constant: loops unroll, checks that always hold vanish
    int row = blockIdx.x * ROWS + warp_id();
    if (row >= N) return;  // the whole warp returns, so no shuffle below misses a lane
    const real* x = logits + (size_t)row * V;  // (V)
    real* p = probs + (size_t)row * V;         // (V)

    // All loops over j are unrolled: an array with a run-time index cannot be in registers.
    Vec xs[ROW_VECTORS];
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        int i = (j * WARP_SIZE + lane_id()) * VECTOR;
        if (i >= V) break;  // past the row's end
        xs[j] = load_vec(x + i);
    }

    float highest = LOWEST;
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        int i = (j * WARP_SIZE + lane_id()) * VECTOR;
        if (i >= V) break;
        for (int k = 0; k < VECTOR; k++) {
            highest = fmaxf(highest, to_float(xs[j][k]));
        }
    }
    highest = warp_max(highest);

    float sum = 0.0f;  // of exponentials; none is above 1, so none overflows
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        int i = (j * WARP_SIZE + lane_id()) * VECTOR;
        if (i >= V) break;
        for (int k = 0; k < VECTOR; k++) {
            sum += __expf(to_float(xs[j][k]) - highest);
        }
    }
    sum = warp_sum(sum);

    float scale = 1.0f / sum;
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        int i = (j * WARP_SIZE + lane_id()) * VECTOR;
        if (i >= V) break;
        Vec ps;
        for (int k = 0; k < VECTOR; k++) {
            ps[k] = to_real(__expf(to_float(xs[j][k]) - highest) * scale);
        }
        store_vec(p + i, ps);
    }
}
