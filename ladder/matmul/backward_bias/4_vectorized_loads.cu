// matmul backward_bias, rung 4: vectorized (128-bit) loads
// Before: rung 3 loads 2 or 4 bytes per lane and instruction.
// Change: a lane owns VECTOR neighbouring columns, and loads them with one access of 16 bytes. A
//         strip is WARP_SIZE * VECTOR columns wide.
// Expect: 4 to 8 times fewer loads for the same sectors (32 bytes each), and more bytes in flight:
//         memory-bound.
// Needs:  OC % vector == 0
// Define: WARPS = 256 // warp; STRIPS = ceil_div(OC, warp * vector);
//         SPLITS = max(1, min(ceil_div(N, 4 * WARPS), 8 * multiprocessors // STRIPS))
// Launch: matmul_backward_bias<<<(STRIPS, SPLITS), WARPS * warp>>>
// Launch: matmul_backward_bias_finish<<<ceil_div(OC, warp), WARPS * warp>>>
// Scratch: float32 partial[SPLITS, OC]
// After:  3
// Left:   where rows are few, the second kernel is much of the time -> rung 5.

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
    __shared__ float sums[VECTOR][WARPS][WARP_SIZE];
    int lane = lane_id(), warp = warp_id();
    int column = (blockIdx.x * WARP_SIZE + lane) * VECTOR;

    float sum[VECTOR] = {};
#pragma unroll 4  // four loads are in flight before the first value is added
    for (int row = blockIdx.y * WARPS + warp; row < N && column < OC; row += SPLITS * WARPS) {
        Vec v = load_vec(dout + (size_t)row * OC + column);
        for (int k = 0; k < VECTOR; k++) {
            sum[k] += to_float(v[k]);
        }
    }
    for (int k = 0; k < VECTOR; k++) {
        sum[k] = add_warps(sum[k], sums[k]);
        if (warp == 0 && column < OC) {
            partial[(size_t)blockIdx.y * OC + column + k] = sum[k];
        }
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
