// global_norm forward, rung 1: one block
// Before: the NumPy reference.
// Change: the threads of one block walk over the N gradients, square them and add them. Their sums
//         are reduced with warp shuffles within a warp, and through shared memory across warps.
// Expect: one SM (streaming multiprocessor) can keep few bytes in flight: a hundredth of the GPU's
//         bandwidth.
// Needs:  real == float32
// Define: BLOCK = 1024; WARPS = BLOCK // warp
// Launch: global_norm_forward<<<1, BLOCK>>>
// Left:   all other SMs are idle -> rung 2.

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
    int N) {
    __shared__ float shared[WARPS];
    float sum = 0.0f;
    for (size_t i = threadIdx.x; i < N; i += BLOCK) {
        sum += grad[i] * grad[i];
    }
    sum = block_sum(sum, shared);
    if (threadIdx.x == 0) norm[0] = sqrtf(sum);
}
