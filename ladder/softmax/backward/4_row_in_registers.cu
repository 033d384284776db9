// softmax backward, rung 4: one warp per row, row cached in registers
// Before: rung 3 gives a block to each row, reads the row twice, and waits at two barriers.
// Change: one warp per row. Its lanes keep the vectors of both inputs in registers.
// Expect: all loads of a row are in flight together. Each byte is read once, and no barrier is
//         left. Registers are few: this works only for rows of up to some thousand columns.
// Needs:  V % vector == 0; ROW_VECTORS <= 8
// Define: ROWS = 4; COLUMNS = V; ROW_VECTORS = ceil_div(V, vector * warp)
// Launch: softmax_backward<<<ceil_div(N, ROWS), ROWS * warp>>>
// After:  3
// Left:   rows too long for the registers of a warp could stay in shared memory.

#include "portable.cuh"

extern "C" __global__ void softmax_backward(
    real* __restrict__ dlogits,       // (N, V)
    const real* __restrict__ dprobs,  // (N, V)
    const real* __restrict__ probs,   // (N, V)
    int N, int V) {
    V = COLUMNS;  // a compile-time constant: loops unroll, checks that always hold vanish
    int row = blockIdx.x * ROWS + warp_id();
    if (row >= N) return;  // the whole warp returns, so no shuffle below misses a lane
    const real* dp = dprobs + (size_t)row * V;  // (V)
    const real* p = probs + (size_t)row * V;    // (V)
    real* dx = dlogits + (size_t)row * V;       // (V)

    // All loops over j are unrolled: an array with a run-time index cannot be in registers.
    Vec dps[ROW_VECTORS], ps[ROW_VECTORS];
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        int i = (j * WARP_SIZE + lane_id()) * VECTOR;
        if (i >= V) break;  // past the row's end
        dps[j] = load_vec(dp + i);
        ps[j] = load_vec(p + i);
    }

    float total = 0.0f;
#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        int i = (j * WARP_SIZE + lane_id()) * VECTOR;
        if (i >= V) break;
        for (int k = 0; k < VECTOR; k++) {
            total += to_float(dps[j][k]) * to_float(ps[j][k]);
        }
    }
    total = warp_sum(total);

#pragma unroll
    for (int j = 0; j < ROW_VECTORS; j++) {
        int i = (j * WARP_SIZE + lane_id()) * VECTOR;
        if (i >= V) break;
        Vec dxs;
        for (int k = 0; k < VECTOR; k++) {
            dxs[k] = to_real(to_float(ps[j][k]) * (to_float(dps[j][k]) - total));
        }
        store_vec(dx + i, dxs);
    }
}
