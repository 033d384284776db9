// softmax forward, rung 2: one block per row, coalesced loads and stores
// Before: in rung 1, the lanes of a warp read addresses that lie V apart, and N threads are few.
// Change: the threads of a block share a row. Neighbouring threads take neighbouring columns, so
//         the accesses are coalesced. Their maxima and sums are reduced with warp shuffles within a
//         warp, and through shared memory across warps.
// Expect: all bytes of a sector are used, and BLOCK times more threads load. The row is still read
//         three times; unless it is long, the second and third time come from a cache.
// Needs:  nothing
// Define: BLOCK = 256; WARPS = BLOCK // warp
// Launch: softmax_forward<<<N, BLOCK>>>
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

extern "C" __global__ void softmax_forward(
    real* __restrict__ probs,         // (N, V)
    const real* __restrict__ logits,  // (N, V)
    int N, int V) {
    __shared__ float partial[WARPS];
    int row = blockIdx.x;
    const real* x = logits + (size_t)row * V;  // (V)
    real* p = probs + (size_t)row * V;         // (V)

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

    float scale = 1.0f / sum;
    for (int i = threadIdx.x; i < V; i += BLOCK) {
        p[i] = to_real(__expf(to_float(x[i]) - highest) * scale);
    }
}
