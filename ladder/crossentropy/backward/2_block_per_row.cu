// crossentropy backward, rung 2: one block per row, coalesced stores
// Before: in rung 1, the lanes of a warp write addresses that lie V apart.
// Change: the threads of a block share a row. Neighbouring threads take neighbouring columns, so
//         the stores are coalesced.
// Expect: whole sectors, and BLOCK times more threads that store.
// Needs:  nothing
// Define: BLOCK = 256
// Launch: crossentropy_backward<<<N, BLOCK>>>
// After:  1
// Left:   stores are 2 or 4 bytes wide, and each compares its column with the target -> rung 3.

#include "portable.cuh"

extern "C" __global__ void crossentropy_backward(
    real* __restrict__ dprobs,        // (N, V)
    const real* __restrict__ probs,   // (N, V)
    const int* __restrict__ targets,  // (N)
    const float* __restrict__ dloss,  // (1)
    int N, int V) {
    int row = blockIdx.x;
    const real* p = probs + (size_t)row * V;  // (V)
    real* dp = dprobs + (size_t)row * V;      // (V)
    int target = targets[row];
    float slope = -dloss[0] / to_float(p[target]);
    for (int i = threadIdx.x; i < V; i += BLOCK) {
        dp[i] = to_real(i == target ? slope : 0.0f);
    }
}
