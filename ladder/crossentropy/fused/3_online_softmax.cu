// crossentropy fused, rung 3: online softmax (maximum and sum in one pass)
// Before: rung 2 reads the row once for the maximum, and again for the sum that needs it.
// Change: online softmax: a thread sums exponentials relative to the largest logit that it has read
//         so far, and a larger one rescales the sum (Milakov and Gimelshein, "Online normalizer
//         calculation for softmax", 2018). At the end, the sum of every thread is rescaled to the
//         maximum of the row.
// Expect: two reads of the row instead of three. The rescaling is a branch, and each step depends
//         on the one before.
// Needs:  nothing
// Define: BLOCK = 1024; WARPS = BLOCK // warp
// Launch: crossentropy_fused<<<N, BLOCK>>>
// After:  2
// Left:   loads are 2 or 4 bytes wide -> rung 4.

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

    float highest = LOWEST, sum = 0.0f;  // of the columns that this thread has read
    for (int i = threadIdx.x; i < V; i += BLOCK) {
        float value = to_float(x[i]);
        if (value > highest) {
            sum *= __expf(highest - value);
            highest = value;
        }
        sum += __expf(value - highest);
    }
    float own = highest;
    highest = block_max(own, partial);
    sum = block_sum(sum * __expf(own - highest), partial);

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
