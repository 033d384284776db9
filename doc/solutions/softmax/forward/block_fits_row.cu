// softmax forward: a block as large as the row needs
// Needs:  V % vector == 0
// Define: BLOCK = min(1024, ceil_div(V, vector * warp) * warp); WARPS = BLOCK // warp
// Launch: softmax_forward<<<N, BLOCK>>>
// After:  4

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

    float highest = LOWEST, sum = 0.0f;  // of the columns that this thread has read
    for (int i = threadIdx.x * VECTOR; i < V; i += BLOCK * VECTOR) {
        Vec xs = load_vec(x + i);
        float before = highest;
        for (int k = 0; k < VECTOR; k++) {
            highest = fmaxf(highest, to_float(xs[k]));
        }
        sum *= __expf(before - highest);
        for (int k = 0; k < VECTOR; k++) {
            sum += __expf(to_float(xs[k]) - highest);
        }
    }
    float own = highest;
    highest = block_max(own, partial);
    sum = block_sum(sum * __expf(own - highest), partial);

    float scale = 1.0f / sum;
    for (int i = threadIdx.x * VECTOR; i < V; i += BLOCK * VECTOR) {
        Vec xs = load_vec(x + i), ps;
        for (int k = 0; k < VECTOR; k++) {
            ps[k] = to_real(__expf(to_float(xs[k]) - highest) * scale);
        }
        store_vec(p + i, ps);
    }
}
