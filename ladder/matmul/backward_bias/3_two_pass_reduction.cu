// matmul backward_bias, rung 3: two-pass reduction with rows split across blocks
// Before: rung 2 has one block for WARP_SIZE columns, 24 blocks for 768.
// Change: SPLITS blocks share a strip, and each writes the sums of its rows to scratch. A second
//         kernel adds these up in a fixed order, so that every run gives the same bits.
// Expect: every SM loads. The scratch is small beside N * OC.
// Needs:  nothing
// Define: WARPS = 256 // warp; STRIPS = ceil_div(OC, warp);
//         SPLITS = max(1, min(ceil_div(N, 4 * WARPS), 8 * multiprocessors // STRIPS))
// Launch: matmul_backward_bias<<<(STRIPS, SPLITS), WARPS * warp>>>
// Launch: matmul_backward_bias_finish<<<STRIPS, WARPS * warp>>>
// Scratch: float32 partial[SPLITS, OC]
// After:  2
// Left:   loads are 2 or 4 bytes wide -> rung 4.

#include "portable.cuh"

// Adds up this lane's column of all warps' sums. Only the first warp gets the total.
__device__ __forceinline__ float add_warps(float sum, float (&sums)[WARPS][WARP_SIZE]) {
    int lane = lane_id(), warp = warp_id();
    sums[warp][lane] = sum;
    __syncthreads();  // all warps have written before the first warp adds their sums
    sum = 0.0f;
    for (int other = 0; other < WARPS && warp == 0; other++) {
        sum += sums[other][lane];
    }
    return sum;
}

extern "C" __global__ void matmul_backward_bias(
    float* __restrict__ dbias,      // (OC)  accumulates
    const real* __restrict__ dout,  // (N, OC)
    int N, int OC,
    float* __restrict__ partial) {  // (SPLITS, OC)  sums over the rows of each split
    __shared__ float sums[WARPS][WARP_SIZE];
    int lane = lane_id(), warp = warp_id();
    int column = blockIdx.x * WARP_SIZE + lane;

    float sum = 0.0f;
    for (int row = blockIdx.y * WARPS + warp; row < N && column < OC; row += SPLITS * WARPS) {
        sum += to_float(dout[(size_t)row * OC + column]);
    }
    sum = add_warps(sum, sums);
    if (warp == 0 && column < OC) {
        partial[(size_t)blockIdx.y * OC + column] = sum;
    }
}

// Adds the SPLITS partial sums to dbias.
extern "C" __global__ void matmul_backward_bias_finish(
    float* __restrict__ dbias, int N, int OC, const float* __restrict__ partial) {
    __shared__ float sums[WARPS][WARP_SIZE];
    int lane = lane_id(), warp = warp_id();
    int column = blockIdx.x * WARP_SIZE + lane;

    float sum = 0.0f;
    for (int split = warp; split < SPLITS && column < OC; split += WARPS) {
        sum += partial[(size_t)split * OC + column];
    }
    sum = add_warps(sum, sums);
    if (warp == 0 && column < OC) {
        dbias[column] += sum;
    }
}
