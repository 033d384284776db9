// softmax backward, rung 1: one thread per row
// Before: the NumPy reference.
// Change: one thread for each of the N rows. It reads its V columns twice.
// Expect: far below the roof (the bandwidth of a plain copy). Neighbouring lanes (the threads of a
//         warp) read addresses V apart, so the accesses are not coalesced: a load of a warp touches
//         one 32-byte sector per lane, and uses 2 or 4 bytes of it.
// Needs:  nothing
// Define: BLOCK = 128
// Launch: softmax_backward<<<ceil_div(N, BLOCK), BLOCK>>>
// Left:   the lanes of a warp read far-apart addresses -> rung 2.

#include "portable.cuh"

extern "C" __global__ void softmax_backward(
    real* __restrict__ dlogits,       // (N, V)
    const real* __restrict__ dprobs,  // (N, V)
    const real* __restrict__ probs,   // (N, V)
    int N, int V) {
    int row = blockIdx.x * BLOCK + threadIdx.x;
    if (row >= N) return;  // the last block may have more threads than there are rows left
    const real* dp = dprobs + (size_t)row * V;  // (V)
    const real* p = probs + (size_t)row * V;    // (V)
    real* dx = dlogits + (size_t)row * V;       // (V)

    float total = 0.0f;
    for (int i = 0; i < V; i++) {
        total += to_float(dp[i]) * to_float(p[i]);
    }
    for (int i = 0; i < V; i++) {
        dx[i] = to_real(to_float(p[i]) * (to_float(dp[i]) - total));
    }
}
