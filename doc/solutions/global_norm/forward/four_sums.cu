// global_norm forward: four sums for each thread, added at the end
// Needs:  real == float32
// Define: BLOCK = 512; WARPS = BLOCK // warp;
//         GRID = min(ceil_div(N, 4 * BLOCK), 4 * multiprocessors)
// Launch: global_norm_forward<<<GRID, BLOCK>>>
// Launch: global_norm_forward_finish<<<1, BLOCK>>>
// Scratch: float32 partial[GRID]
// After:  3

#include "portable.cuh"

// The sum of `value` over the block, returned to every thread; the order of the additions is fixed.
__device__ float block_sum(float value, float* partial /* (WARPS) */) {
    value = warp_sum(value);
    if (lane_id() == 0) partial[warp_id()] = value;
    __syncthreads();  // every warp's sum is written before it is read
    return warp_sum(lane_id() < WARPS ? partial[lane_id()] : 0.0f);
}

extern "C" __global__ void global_norm_forward(
    float* __restrict__ norm,        // (1)
    const float* __restrict__ grad,  // (N)
    int N,
    float* __restrict__ partial) {   // (GRID)  each block's sum of squares
    __shared__ float shared[WARPS];
    float4 sums = {};
    int quads = N / 4;
    for (int i = blockIdx.x * BLOCK + threadIdx.x; i < quads; i += GRID * BLOCK) {
        float4 g = reinterpret_cast<const float4*>(grad)[i];
        sums.x += g.x * g.x;
        sums.y += g.y * g.y;
        sums.z += g.z * g.z;
        sums.w += g.w * g.w;
    }
    float sum = (sums.x + sums.y) + (sums.z + sums.w);
    if (blockIdx.x == 0 && threadIdx.x < N % 4) {
        float g = grad[(size_t)4 * quads + threadIdx.x];
        sum += g * g;
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

// Adds partial (GRID) in one block, and stores its root in norm (1).
extern "C" __global__ void global_norm_forward_finish(
    float* __restrict__ norm, int N, const float* __restrict__ partial) {
    __shared__ float shared[WARPS];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < GRID; i += BLOCK) {
        sum += partial[i];
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) norm[0] = sqrtf(sum);
}
