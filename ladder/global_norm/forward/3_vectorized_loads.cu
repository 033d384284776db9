// global_norm forward, rung 3: vectorized (128-bit) loads
// Before: in rung 2, one instruction loads 4 bytes per lane.
// Change: a thread loads four neighbouring gradients with one 16-byte (128-bit) instruction. Where
//         N is not a multiple of four, the last few are loaded one by one.
// Expect: a quarter of the memory instructions; four times the bytes in flight per warp.
// Needs:  real == float32
// Define: BLOCK = 512; WARPS = BLOCK // warp;
//         GRID = min(ceil_div(N, 4 * BLOCK), 4 * multiprocessors)
// Launch: global_norm_forward<<<GRID, BLOCK>>>
// Launch: global_norm_forward_finish<<<1, BLOCK>>>
// Scratch: float32 partial[GRID]
// After:  2
// Left:   only the bytes themselves: the kernel that writes a gradient last could square it, too
//         (fusion).

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
    float sum = 0.0f;
    int quads = N / 4;
    for (int i = blockIdx.x * BLOCK + threadIdx.x; i < quads; i += GRID * BLOCK) {
        float4 g = reinterpret_cast<const float4*>(grad)[i];
        sum += g.x * g.x + g.y * g.y + g.z * g.z + g.w * g.w;
    }
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
