// matmul forward, rung 1b: one warp per output
// Before: in rung 1, neighbouring lanes read rows of weight that are C apart: a sector per lane.
// Change: a warp computes an output. Its lanes read neighbouring channels of the row of inp and of
//         the row of weight, and add up their sums with shuffles (warp_sum).
// Expect: as many loads, but coalesced: a warp's load touches the 2 or 4 sectors that hold its
//         bytes. The shuffles are few beside C / warp steps of the loop.
// Needs:  nothing
// Define: WARPS = 8
// Launch: matmul_forward<<<ceil_div(N * OC, WARPS), WARPS * warp>>>
// After:  1
// Left:   every row of weight is loaded N times, every row of inp OC times -> rung 2.

#include "portable.cuh"

extern "C" __global__ void matmul_forward(
    real* __restrict__ out,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC), or null
    int N, int C, int OC) {
    size_t index = (size_t)blockIdx.x * WARPS + warp_id();  // N * OC can exceed an int
    if (index >= (size_t)N * OC) return;  // the whole warp returns, so no shuffle misses a lane
    int row = index / OC, column = index % OC;
    const real* x = inp + (size_t)row * C;        // (C)
    const real* w = weight + (size_t)column * C;  // (C)

    float sum = 0.0f;
    for (int i = lane_id(); i < C; i += WARP_SIZE) {
        sum += to_float(x[i]) * to_float(w[i]);
    }
    sum = warp_sum(sum) + (bias ? to_float(bias[column]) : 0.0f);
    if (lane_id() == 0) out[index] = to_real(sum);
}
