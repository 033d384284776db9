// decode linear, rung 4: split-K inside the block
// Before: rung 3 has one warp per column. Few columns are few warps, each with a long row.
// Change: PARTS warps share a column, each with a part of the channels (split-K), so that the SMs
//         (streaming multiprocessors) have some 16 warps each. Their sums meet in shared memory, in
//         a fixed order. Where there are columns enough, PARTS is 1.
// Expect: a shorter wait for the linear layers inside a block of the model, where a row is loaded
//         at once instead of piece by piece. Nothing for the language model head.
// Needs:  C % vector == 0
// Define: WARPS = 8; ROWS = min(N, 8); ENOUGH = 16 * multiprocessors;
//         PARTS = 1 if OC >= 2 * ENOUGH else 2 if OC >= ENOUGH else 4; COLUMNS = WARPS // PARTS;
//         SPAN = PARTS * warp * vector; IN_FLIGHT = min(8, ceil_div(C, SPAN))
// Launch: decode_linear<<<ceil_div(OC, COLUMNS), WARPS * warp>>>
// After:  3
// Left:   loops that end at run time, with tests between the loads -> rung 4b.

#include "portable.cuh"

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE) decode_linear(
    real* __restrict__ out,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC), or null
    int N, int C, int OC) {
    __shared__ float parts[ROWS][WARPS];
    int column = blockIdx.x * COLUMNS + warp_id() / PARTS;
    const real* w = weight + (size_t)column * C;  // (C)

    for (int first = 0; first < N; first += ROWS) {
        const real* x = inp + (size_t)first * C;  // (ROWS, C)
        float sums[ROWS] = {};
        int own = warp_id() % PARTS * WARP_SIZE + lane_id();  // of the lanes that share the column
        for (int i = own * VECTOR; i < C && column < OC; i += IN_FLIGHT * SPAN) {
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
            float sum = warp_sum(sums[r]);
            if (lane_id() == 0) parts[r][warp_id()] = sum;
        }
        __syncthreads();  // all warps have left their parts before they are added up
        int r = threadIdx.x / COLUMNS, c = threadIdx.x % COLUMNS;  // an output of this thread
        int to = blockIdx.x * COLUMNS + c;
        if (r < ROWS && first + r < N && to < OC) {
            float sum = bias ? to_float(bias[to]) : 0.0f;
            for (int part = 0; part < PARTS; part++) {
                sum += parts[r][c * PARTS + part];
            }
            out[(size_t)(first + r) * OC + to] = to_real(sum);
        }
        __syncthreads();  // the parts are read before the next rows overwrite them
    }
}
