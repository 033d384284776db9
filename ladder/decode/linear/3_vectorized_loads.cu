// decode linear, rung 3: vectorized (128-bit) loads
// Before: rung 2 loads 2 or 4 bytes at a time, and has few bytes in flight.
// Change: a lane loads VECTOR neighbouring channels of weight, and of each row of inp, with one
//         16-byte (128-bit) load. It starts IN_FLIGHT loads of weight before it needs the first:
//         all of the row, unless that is very long.
// Expect: 4 to 8 times fewer loads, and the bytes in flight that the memory needs, where there are
//         enough columns: those of the language model head. Bound by memory there.
// Needs:  C % vector == 0
// Define: WARPS = 8; ROWS = min(N, 8); SPAN = warp * vector; IN_FLIGHT = min(8, ceil_div(C, SPAN))
// Launch: decode_linear<<<ceil_div(OC, WARPS), WARPS * warp>>>
// After:  2
// Left:   768 columns are 768 warps, fewer than six for each SM (streaming multiprocessor) of an
//         H200 -> rung 4.

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
        for (int i = lane_id() * VECTOR; i < C; i += IN_FLIGHT * SPAN) {
            Vec factors[IN_FLIGHT];
#pragma unroll
            for (int j = 0; j < IN_FLIGHT; j++) {
                factors[j] = i + j * SPAN < C ? load_vec(w + i + j * SPAN) : Vec{};
            }
#pragma unroll
            for (int j = 0; j < IN_FLIGHT; j++) {
                for (int r = 0; r < ROWS; r++) {
                    if (first + r >= N || i + j * SPAN >= C) break;
                    Vec xs = load_vec(x + (size_t)r * C + i + j * SPAN);
                    for (int k = 0; k < VECTOR; k++) {
                        sums[r] += to_float(xs[k]) * to_float(factors[j][k]);
                    }
                }
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
