// crossentropy fused, rung 2: one block per row, coalesced loads and stores
// Before: in rung 1, the lanes of a warp read addresses that lie Vp apart, and N threads are few.
// Change: the threads of a block share a row. Neighbouring threads take neighbouring columns, so
//         the accesses are coalesced. Their maxima and sums are reduced with warp shuffles within a
//         warp, and through shared memory across warps.
// Expect: all bytes of a sector are used, and BLOCK times more threads load. The row is still read
//         three times, and it is long: what the L1 cache does not keep comes from the L2 cache.
// Needs:  nothing
// Define: BLOCK = 1024; WARPS = BLOCK // warp
// Launch: crossentropy_fused<<<N, BLOCK>>>
// After:  1
// Left:   two passes before the first output -> rung 3.

#include "portable.cuh"

// The lowest finite float. Not -INFINITY: the difference of two of those is NaN.
constexpr float LOWEST = -3.402823466e38f;

// The maximum of `value` over the block, returned to every thread.
__device__ float block_max(float value, float* partial /* (WARPS) */) {
    value = warp_max(value);
    if (lane_id() == 0) partial[warp_id()] = value;
    __syncthreads();  // every warp's maximum is written before it is read
    value = warp_max(lane_id() < WARPS ? partial[lane_id()] : LOWEST);
    __syncthreads();  // all threads have read `partial` before the next call overwrites it
    return value;
}

// The sum of `value` over the block, returned to every thread.
__device__ float block_sum(float value, float* partial /* (WARPS) */) {
    value = warp_sum(value);
    if (lane_id() == 0) partial[warp_id()] = value;
    __syncthreads();  // every warp's sum is written before it is read
    value = warp_sum(lane_id() < WARPS ? partial[lane_id()] : 0.0f);
    __syncthreads();  // all threads have read `partial` before the next call overwrites it
    return value;
}

extern "C" __global__ void crossentropy_fused(
    float* __restrict__ losses,       // (N)
    real* __restrict__ logits,        // (N, Vp)  overwritten by dlogits
    const int* __restrict__ targets,  // (N)
    const float* __restrict__ dloss,  // (1)
    int N, int V, int Vp) {
    __shared__ float partial[WARPS];
    int row = blockIdx.x;
    real* x = logits + (size_t)row * Vp;  // (Vp)
    int target = targets[row];
    float correct = to_float(x[target]);  // before it is overwritten

    float highest = LOWEST;
    for (int i = threadIdx.x; i < V; i += BLOCK) {
        highest = fmaxf(highest, to_float(x[i]));
    }
    highest = block_max(highest, partial);

    float sum = 0.0f;  // of exponentials; none is above 1, so none overflows
    for (int i = threadIdx.x; i < V; i += BLOCK) {
        sum += __expf(to_float(x[i]) - highest);
    }
    sum = block_sum(sum, partial);

    float scale = dloss[0] / sum;
    for (int i = threadIdx.x; i < V; i += BLOCK) {
        x[i] = to_real(__expf(to_float(x[i]) - highest) * scale);
    }
    for (int i = V + threadIdx.x; i < Vp; i += BLOCK) {
        x[i] = to_real(0.0f);  // padding has no gradient
    }
    __syncthreads();  // the whole row is written before its target is overwritten
    if (threadIdx.x == 0) {
        x[target] = to_real((__expf(correct - highest) / sum - 1.0f) * dloss[0]);
        losses[row] = logf(sum) - (correct - highest);
    }
}
