// softmax backward, rung 2: one block per row, coalesced loads and stores
// Before: in rung 1, the lanes of a warp read addresses that lie V apart, and N threads are few.
// Change: the threads of a block share a row. Neighbouring threads take neighbouring columns, so
//         the accesses are coalesced. Their sums are reduced with warp shuffles within a warp, and
//         through shared memory across warps.
// Expect: all bytes of a sector are used, and BLOCK times more threads load.
// Needs:  nothing
// Define: BLOCK = 256; WARPS = BLOCK // warp
// Launch: softmax_backward<<<N, BLOCK>>>
// After:  1
// Left:   loads are 2 or 4 bytes wide -> rung 3.

#include "portable.cuh"

// The sum of `value` over the block, returned to every thread.
__device__ float block_sum(float value, float* partial /* (WARPS) */) {
    value = warp_sum(value);
    if (lane_id() == 0) partial[warp_id()] = value;
    __syncthreads();  // every warp's sum is written before it is read
    value = warp_sum(lane_id() < WARPS ? partial[lane_id()] : 0.0f);
    __syncthreads();  // all threads have read `partial` before the next call overwrites it
    return value;
}

extern "C" __global__ void softmax_backward(
    real* __restrict__ dlogits,       // (N, V)
    const real* __restrict__ dprobs,  // (N, V)
    const real* __restrict__ probs,   // (N, V)
    int N, int V) {
    __shared__ float partial[WARPS];
    int row = blockIdx.x;
    const real* dp = dprobs + (size_t)row * V;  // (V)
    const real* p = probs + (size_t)row * V;    // (V)
    real* dx = dlogits + (size_t)row * V;       // (V)

    float total = 0.0f;
    for (int i = threadIdx.x; i < V; i += BLOCK) {
        total += to_float(dp[i]) * to_float(p[i]);
    }
    total = block_sum(total, partial);
    for (int i = threadIdx.x; i < V; i += BLOCK) {
        dx[i] = to_real(to_float(p[i]) * (to_float(dp[i]) - total));
    }
}
