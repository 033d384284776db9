// decode linear, rung 5: row and input in flight together
// Before: in rung 4b, a lane asks for a piece of inp only when it needs it, and waits for each
//         piece alone: a branch lies between the loads.
// Change: a lane starts all loads of its part of a row of inp, and that of the bias, before it
//         needs the first.
// Expect: one wait for memory instead of four, for a single row of 3,072 channels.
// Needs:  C % vector == 0; N <= 8; IN_FLIGHT <= 16
// Define: WARPS = 8; ROWS = N; ENOUGH = 16 * multiprocessors;
//         PARTS = 1 if OC >= 2 * ENOUGH else 2 if OC >= ENOUGH else 4; COLUMNS = WARPS // PARTS;
//         SPAN = PARTS * warp * vector; IN_FLIGHT = ceil_div(C, SPAN)
// Launch: decode_linear<<<ceil_div(OC, COLUMNS), WARPS * warp>>>
// After:  4b
// Left:   a launch and a wait for the weights, both of which could begin earlier -> rung 6.

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
    int r = threadIdx.x / COLUMNS, c = threadIdx.x % COLUMNS;  // an output of this thread
    int to = blockIdx.x * COLUMNS + c;
    float offset = bias && to < OC ? to_float(bias[to]) : 0.0f;

#pragma unroll
    for (int row = 0; row < ROWS; row++) {
        Vec xs[IN_FLIGHT];
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; j++) {
            bool inside = own + j * SPAN < C;
            xs[j] = inside ? load_vec(inp + (size_t)row * C + own + j * SPAN) : Vec{};
        }
        float sum = 0.0f;
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; j++) {
            for (int k = 0; k < VECTOR; k++) {
                sum += to_float(xs[j][k]) * to_float(factors[j][k]);
            }
        }
        sum = warp_sum(sum);
        if (lane_id() == 0) parts[row][warp_id()] = sum;
    }
    __syncthreads();  // all warps have left their parts before they are added up
    if (r < ROWS && to < OC) {
        float sum = offset;
        for (int part = 0; part < PARTS; part++) {
            sum += parts[r][c * PARTS + part];
        }
        out[(size_t)r * OC + to] = to_real(sum);
    }
}
