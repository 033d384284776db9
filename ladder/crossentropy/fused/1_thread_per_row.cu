// crossentropy fused, rung 1: one thread per row
// Before: softmax forward, crossentropy forward and backward, softmax backward: the row is read or
//         written ten times by four kernels, and the probabilities take as much memory again.
// Change: dlogits = dloss * (softmax(logits) - onehot(target)): a thread for each of the N rows
//         walks over its logits three times and leaves their gradients in their place.
// Expect: far below the roof. Neighbouring lanes read addresses Vp apart: a warp's load touches one
//         32-byte sector per lane, and uses 2 or 4 bytes of it.
// Needs:  nothing
// Define: BLOCK = 128
// Launch: crossentropy_fused<<<ceil_div(N, BLOCK), BLOCK>>>
// Left:   the lanes of a warp read far-apart addresses -> rung 2.

#include "portable.cuh"

// Below every finite number. Not -INFINITY: a difference of two of those is NaN.
constexpr float LOWEST = -3.402823466e38f;

extern "C" __global__ void crossentropy_fused(
    float* __restrict__ losses,       // (N)
    real* __restrict__ logits,        // (N, Vp)  become dlogits
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

    float sum = 0.0f;  // of exponentials that cannot overflow: none is above 1
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
