// matmul backward_bias: atomics instead of a second kernel
// Needs:  OC % vector == 0
// Define: WARPS = 256 // warp; STRIPS = ceil_div(OC, warp * vector);
//         SPLITS = max(1, min(ceil_div(N, 4 * WARPS), 8 * multiprocessors // STRIPS))
// Launch: matmul_backward_bias<<<(STRIPS, SPLITS), WARPS * warp>>>
// Deterministic: no, the blocks add in any order
// After:  4

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
    int N, int OC) {
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
            atomicAdd(&dbias[column + k], sum[k]);
        }
    }
}
