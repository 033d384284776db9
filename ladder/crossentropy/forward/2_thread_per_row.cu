// crossentropy forward, rung 2: one thread per row, blocks on every SM
// Before: rung 1 runs in one block, on one SM.
// Change: one thread per row, in as many blocks as that takes. A block has only a few warps, so
//         that even few rows spread over many SMs.
// Expect: the loads of all rows are in flight together. It takes the time of a kernel with almost
//         no work.
// Needs:  nothing
// Define: BLOCK = 128
// Launch: crossentropy_forward<<<ceil_div(N, BLOCK), BLOCK>>>
// After:  1
// Left:   nothing here: fused with softmax, it needs no probs (crossentropy.fused).

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
