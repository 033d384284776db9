// crossentropy fused, rung 1: one thread per row
// Before: softmax forward, crossentropy forward and backward, softmax backward: four kernels read
//         or write the row at least six times, and the probabilities take as much memory as the
//         logits.
// Change: dlogits = dloss * (softmax(logits) - onehot(target)). One thread for each of the N rows
//         reads its logits three times, and replaces them by their gradients.
// Expect: far below the roof (the bandwidth of a plain copy). Neighbouring lanes (the threads of a
//         warp) read addresses Vp apart, so the accesses are not coalesced: a load of a warp
//         touches one 32-byte sector per lane, and uses 2 or 4 bytes of it.
// Needs:  nothing
// Define: BLOCK = 128
// Launch: crossentropy_fused<<<ceil_div(N, BLOCK), BLOCK>>>
// Left:   the lanes of a warp read far-apart addresses -> rung 2.

#include "portable.cuh"

// The lowest finite float. Not -INFINITY: the difference of two of those is NaN.
constexpr float LOWEST = -3.402823466e38f;

extern "C" __global__ void crossentropy_fused(
    float* __restrict__ losses,       // (N)
    real* __restrict__ logits,        // (N, Vp)  overwritten by dlogits
    const int* __restrict__ targets,  // (N)
    const float* __restrict__ dloss,  // (1)
    int N, int V, int Vp) {
    int row = blockIdx.x * BLOCK + threadIdx.x;
    if (row >= N) return;  // the last block may have more threads than there are rows left
    real* x = logits + (size_t)row * Vp;  // (Vp)
    int target = targets[row];
    float correct = to_float(x[target]);  // before it is overwritten

    float highest = LOWEST;
    for (int i = 0; i < V; i++) {
        highest = fmaxf(highest, to_float(x[i]));
    }

    float sum = 0.0f;  // of exponentials; none is above 1, so none overflows
    for (int i = 0; i < V; i++) {
        sum += __expf(to_float(x[i]) - highest);
    }

    float scale = dloss[0] / sum;
    for (int i = 0; i < V; i++) {
        x[i] = to_real(__expf(to_float(x[i]) - highest) * scale);
    }
    for (int i = V; i < Vp; i++) {
        x[i] = to_real(0.0f);  // padding has no gradient
    }
    x[target] = to_real((__expf(correct - highest) / sum - 1.0f) * dloss[0]);
    losses[row] = logf(sum) - (correct - highest);
}
