// decode linear, rung 4b: the number of rows is a constant
// Before: in rung 4, loops over groups of rows, over rounds of channels, and over the rows of a
//         group end at run time, with tests around a few loads each.
// Change: N is a constant (at most 8), so the loop over the rows unrolls. A lane holds its whole
//         part of a column of the weight, however long: there is one round.
// Expect: fewer tests and one barrier less. For one row, the loads are those of rung 4, in the same
//         order, so there is little to gain. It is a step on the way: only where loops unroll can a
//         lane ask for all of a row of inp at once.
// Needs:  C % vector == 0; N <= 8; IN_FLIGHT <= 16
// Define: WARPS = 8; ROWS = N; ENOUGH = 16 * multiprocessors;
//         PARTS = 1 if OC >= 2 * ENOUGH else 2 if OC >= ENOUGH else 4; COLUMNS = WARPS // PARTS;
//         SPAN = PARTS * warp * vector; IN_FLIGHT = ceil_div(C, SPAN)
// Launch: decode_linear<<<ceil_div(OC, COLUMNS), WARPS * warp>>>
// After:  4
// Left:   pieces of inp, which a lane waits for one after the other -> rung 5.

#include "portable.cuh"

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE) decode_linear(
    real* __restrict__ out,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC), or null
    int N, int C, int OC) {
    __shared__ float parts[ROWS][WARPS];
    int column = blockIdx.x * COLUMNS + warp_id() / PARTS;
    int own = (warp_id() % PARTS * WARP_SIZE + lane_id()) * VECTOR;  // the lane's first channel
    const real* w = weight + (size_t)column * C;                     // (C)

    Vec factors[IN_FLIGHT];
#pragma unroll
    for (int j = 0; j < IN_FLIGHT; j++) {
        factors[j] = own + j * SPAN < C && column < OC ? load_vec(w + own + j * SPAN) : Vec{};
    }

#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; j++) {
            if (own + j * SPAN >= C) break;
            Vec xs = load_vec(inp + (size_t)row * C + own + j * SPAN);
            for (int k = 0; k < VECTOR; k++) {
                sum += to_float(xs[k]) * to_float(factors[j][k]);
            }
        }
        sum = warp_sum(sum);
        if (lane_id() == 0) parts[row][warp_id()] = sum;
    }
    __syncthreads();  // all warps have left their parts before they are added up
    int r = threadIdx.x / COLUMNS, c = threadIdx.x % COLUMNS;  // an output of this thread
    int to = blockIdx.x * COLUMNS + c;
    if (r < ROWS && to < OC) {
        float sum = bias ? to_float(bias[to]) : 0.0f;
        for (int part = 0; part < PARTS; part++) {
            sum += parts[r][c * PARTS + part];
        }
        out[(size_t)r * OC + to] = to_real(sum);
    }
}
