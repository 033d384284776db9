// relu backward, rung 1: one thread per element
// Before: the NumPy reference.
// Change: one thread for each of the N elements: two loads, a comparison, a store. The gradient
//         passes where the output is positive. Nothing is computed with it, so it keeps its type.
// Expect: memory-bound: one comparison for 3 * sizeof(real) bytes. Neighbouring lanes access
//         neighbouring addresses (coalesced), so all bytes of a sector are used. But in 16 bits a
//         warp requests only 64 bytes at a time, and too few bytes may be in flight.
// Needs:  nothing
// Define: BLOCK = 256
// Launch: relu_backward<<<ceil_div(N, BLOCK), BLOCK>>>
// Left:   dout is loaded behind a branch, and loads are 2 or 4 bytes wide -> rung 2.

#include "portable.cuh"

extern "C" __global__ void relu_backward(
    real* __restrict__ dinp,        // (N)
    const real* __restrict__ dout,  // (N)
    const real* __restrict__ out,   // (N)
    int N) {
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= N) return;  // the last block may have more threads than there are elements left
    dinp[i] = to_float(out[i]) > 0.0f ? dout[i] : to_real(0.0f);
}
