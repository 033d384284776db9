// crossentropy forward, rung 2: one thread per row, on the whole GPU
// Before: rung 1 runs in one block, on one multiprocessor.
// Change: as many blocks as it takes, each as small as a few warps: even few rows spread out.
// Expect: all rows' loads under way together; the time of a kernel that does next to nothing.
// Needs:  nothing
// Define: BLOCK = 128
// Launch: crossentropy_forward<<<ceil_div(N, BLOCK), BLOCK>>>
// After:  1
// Left:   nothing here: the softmax had these probabilities at hand (crossentropy.fused).

#include "portable.cuh"

extern "C" __global__ void crossentropy_forward(
    float* __restrict__ losses,       // (N)
    const real* __restrict__ probs,   // (N, V)
    const int* __restrict__ targets,  // (N)
    int N, int V) {
    int row = blockIdx.x * BLOCK + threadIdx.x;
    if (row >= N) return;  // the last block may have more threads than there are rows left
    losses[row] = -logf(to_float(probs[(size_t)row * V + targets[row]]));
}
