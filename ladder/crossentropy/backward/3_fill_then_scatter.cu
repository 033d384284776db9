// crossentropy backward, rung 3: vectorized fill, then scatter
// Before: rung 2 stores 2 or 4 bytes at a time, and compares every column with the target.
// Change: a first kernel fills all of dprobs with 0, in vectorized (16-byte) stores. It ignores the
//         rows, so V need not be a multiple of anything. A second kernel writes the N elements that
//         are not 0 (a scatter).
// Expect: only stores of whole sectors: as fast as memory can be written. The second kernel is a
//         launch with almost no work.
// Needs:  nothing
// Define: BLOCK = 256
// Launch: crossentropy_backward_fill<<<ceil_div(N * V, BLOCK * vector), BLOCK>>>
// Launch: crossentropy_backward<<<ceil_div(N, BLOCK), BLOCK>>>
// After:  2
// Left:   nothing in this op: fused with softmax, it needs no dprobs (crossentropy.fused).

#include "portable.cuh"

// Fills dprobs (N, V) with 0.
extern "C" __global__ void crossentropy_backward_fill(real* __restrict__ dprobs, int N, int V) {
    size_t size = (size_t)N * V;
    size_t i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * VECTOR;
    Vec zeros;
    for (int k = 0; k < VECTOR; k++) {
        zeros[k] = to_real(0.0f);
    }
    if (i + VECTOR <= size) {
        store_vec(dprobs + i, zeros);
    } else {
        for (; i < size; i++) dprobs[i] = zeros[0];
    }
}

extern "C" __global__ void crossentropy_backward(
    real* __restrict__ dprobs,        // (N, V)
    const real* __restrict__ probs,   // (N, V)
    const int* __restrict__ targets,  // (N)
    const float* __restrict__ dloss,  // (1)
    int N, int V) {
    int row = blockIdx.x * BLOCK + threadIdx.x;
    if (row >= N) return;  // the last block may have more threads than there are rows left
    size_t i = (size_t)row * V + targets[row];
    dprobs[i] = to_real(-dloss[0] / to_float(probs[i]));
}
