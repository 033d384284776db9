// global_norm forward, rung 2: two-stage reduction, grid-stride loop
// Before: rung 1 runs on one SM.
// Change: as many blocks as the GPU holds at once walk over the gradients in strides of the grid (a
//         grid-stride loop). Each block writes its sum to scratch memory, and a second kernel adds
//         these sums. Blocks cannot wait for each other, but a kernel waits for the one before it.
// Expect: every SM loads. There are 4 bytes for a multiplication and an addition, so it is bound by
//         memory. There are no atomics: the order of the additions is fixed, and so are the bits.
// Needs:  real == float32
// Define: BLOCK = 512; WARPS = BLOCK // warp; GRID = min(ceil_div(N, BLOCK), 4 * multiprocessors)
// Launch: global_norm_forward<<<GRID, BLOCK>>>
// Launch: global_norm_forward_finish<<<1, BLOCK>>>
// Scratch: float32 partial[GRID]
// After:  1
// Left:   loads are 4 bytes wide -> rung 3.

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
    for (size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x; i < N; i += GRID * BLOCK) {
        sum += grad[i] * grad[i];
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
