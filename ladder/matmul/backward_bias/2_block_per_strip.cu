// matmul backward_bias, rung 2: one block per strip of columns
// Before: rung 1 has one thread for each column.
// Change: a block takes a strip of WARP_SIZE columns. Its WARPS warps share the rows, and add up
//         their sums through shared memory.
// Expect: WARPS times as many threads, but still only OC / WARP_SIZE blocks: 24 for 768 columns.
// Needs:  nothing
// Define: WARPS = 1024 // warp
// Launch: matmul_backward_bias<<<ceil_div(OC, warp), WARPS * warp>>>
// After:  1
// Left:   most SMs have no block -> rung 3.

#include "portable.cuh"

extern "C" __global__ void matmul_backward_bias(
    float* __restrict__ dbias,      // (OC)  accumulates
    const real* __restrict__ dout,  // (N, OC)
    int N, int OC) {
    __shared__ float sums[WARPS][WARP_SIZE];
    int lane = lane_id(), warp = warp_id();
    int column = blockIdx.x * WARP_SIZE + lane;

    float sum = 0.0f;
    for (int row = warp; row < N && column < OC; row += WARPS) {
        sum += to_float(dout[(size_t)row * OC + column]);
    }
    sums[warp][lane] = sum;
    __syncthreads();  // all warps have written before the first warp adds their sums

    if (warp > 0 || column >= OC) return;
    sum = 0.0f;
    for (int other = 0; other < WARPS; other++) {
        sum += sums[other][lane];
    }
    dbias[column] += sum;
}
