// crossentropy forward, rung 1: one block for all rows
// Before: the NumPy reference.
// Change: the BLOCK threads of one block walk over the N rows together: a target, its probability,
//         a logarithm.
// Expect: almost no bytes to move, but two dependent loads, N / BLOCK times one after the other, on
//         one SM (streaming multiprocessor).
// Needs:  nothing
// Define: BLOCK = 256
// Launch: crossentropy_forward<<<1, BLOCK>>>
// Left:   all other SMs are idle -> rung 2.

#include "portable.cuh"

extern "C" __global__ void crossentropy_forward(
    float* __restrict__ losses,       // (N)
    const real* __restrict__ probs,   // (N, V)
    const int* __restrict__ targets,  // (N)
    int N, int V) {
    for (int row = threadIdx.x; row < N; row += BLOCK) {
        losses[row] = -logf(to_float(probs[(size_t)row * V + targets[row]]));
    }
}
