// decode linear, rung 2: one warp per column
// Before: in rung 1 the lanes of a warp read rows of weight that are C apart, once for each of the
//         N rows of inp.
// Change: a warp takes one column of out, that is one row of weight. Its lanes read neighbouring
//         channels, and each element serves ROWS rows of inp. A warp shuffle reduction adds up the
//         lanes' sums.
// Expect: coalesced loads, WARP_SIZE times as many threads, and weight is read once for ROWS rows.
// Needs:  nothing
// Define: WARPS = 8; ROWS = min(N, 8)
// Launch: decode_linear<<<ceil_div(OC, WARPS), WARPS * warp>>>
// After:  1
// Left:   loads are 2 or 4 bytes wide -> rung 3.

#include "portable.cuh"

extern "C" __global__ void decode_linear(
    real* __restrict__ out,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC), or null
    int N, int C, int OC) {
    int column = blockIdx.x * WARPS + warp_id();
    if (column >= OC) return;  // the whole warp returns, so no shuffle below misses a lane
    const real* w = weight + (size_t)column * C;  // (C)

    for (int first = 0; first < N; first += ROWS) {
        const real* x = inp + (size_t)first * C;  // (ROWS, C)
        float sums[ROWS] = {};
        for (int i = lane_id(); i < C; i += WARP_SIZE) {
            float factor = to_float(w[i]);
            for (int r = 0; r < ROWS; r++) {
                if (first + r < N) sums[r] += to_float(x[(size_t)r * C + i]) * factor;
            }
        }
        for (int r = 0; r < ROWS; r++) {
            float sum = warp_sum(sums[r]) + (bias ? to_float(bias[column]) : 0.0f);
            if (lane_id() == 0 && first + r < N) {
                out[(size_t)(first + r) * OC + column] = to_real(sum);
            }
        }
    }
}
