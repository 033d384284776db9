// crossentropy backward, rung 1: one thread per row
// Before: the NumPy reference.
// Change: one thread for each of the N rows writes its V gradients; all but one of them are 0.
// Expect: far below the roof (the bandwidth of a plain copy). Neighbouring lanes (the threads of a
//         warp) write addresses V apart, so the accesses are not coalesced: a store of a warp
//         touches one 32-byte sector per lane, and fills 2 or 4 bytes of it.
// Needs:  nothing
// Define: BLOCK = 128
// Launch: crossentropy_backward<<<ceil_div(N, BLOCK), BLOCK>>>
// Left:   the lanes of a warp write far-apart addresses -> rung 2.

#include "portable.cuh"

extern "C" __global__ void crossentropy_backward(
    real* __restrict__ dprobs,        // (N, V)
    const real* __restrict__ probs,   // (N, V)
    const int* __restrict__ targets,  // (N)
    const float* __restrict__ dloss,  // (1)
    int N, int V) {
    int row = blockIdx.x * BLOCK + threadIdx.x;
    if (row >= N) return;  // the last block may have more threads than there are rows left
    const real* p = probs + (size_t)row * V;  // (V)
    real* dp = dprobs + (size_t)row * V;      // (V)
    int target = targets[row];
    float slope = -dloss[0] / to_float(p[target]);
    for (int i = 0; i < V; i++) {
        dp[i] = to_real(i == target ? slope : 0.0f);
    }
}
