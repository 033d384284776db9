// softmax forward, rung 1: one thread per row
// Before: the NumPy reference.
// Change: one thread for each of the N rows. It reads its V columns three times: for the maximum,
//         for the sum, for the output.
// Expect: far below the roof (the bandwidth of a plain copy). Neighbouring lanes (the threads of a
//         warp) read addresses V apart, so the accesses are not coalesced: a load of a warp touches
//         one 32-byte sector per lane, and uses 2 or 4 bytes of it.
// Needs:  nothing
// Define: BLOCK = 128
// Launch: softmax_forward<<<ceil_div(N, BLOCK), BLOCK>>>
// Left:   the lanes of a warp read far-apart addresses -> rung 2.

#include "portable.cuh"

// The lowest finite float. Not -INFINITY: the difference of two of those is NaN.
constexpr float LOWEST = -3.402823466e38f;

extern "C" __global__ void softmax_forward(
    real* __restrict__ probs,         // (N, V)
    const real* __restrict__ logits,  // (N, V)
    int N, int V) {
    int row = blockIdx.x * BLOCK + threadIdx.x;
    if (row >= N) return;  // the last block may have more threads than there are rows left
    const real* x = logits + (size_t)row * V;  // (V)
    real* p = probs + (size_t)row * V;         // (V)

    float highest = LOWEST;
    for (int i = 0; i < V; i++) {
        highest = fmaxf(highest, to_float(x[i]));
    }

    float sum = 0.0f;  // of exponentials; none is above 1, so none overflows
    for (int i = 0; i < V; i++) {
        sum += __expf(to_float(x[i]) - highest);
    }

    float scale = 1.0f / sum;
    for (int i = 0; i < V; i++) {
        p[i] = to_real(__expf(to_float(x[i]) - highest) * scale);
    }
}
