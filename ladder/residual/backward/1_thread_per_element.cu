// residual backward, rung 1: one thread per element
// Before: the NumPy reference.
// Change: one thread for each of the N elements: two loads, an addition, a store. No other thread
//         accesses this element, so += needs no atomic.
// Expect: memory-bound: one addition for 3 * sizeof(real) bytes. Neighbouring lanes access
//         neighbouring addresses (coalesced), so all bytes of a sector are used. But in 16 bits a
//         warp requests only 64 bytes at a time, and too few bytes may be in flight.
// Needs:  nothing
// Define: BLOCK = 256
// Launch: residual_backward<<<ceil_div(N, BLOCK), BLOCK>>>
// Left:   loads are 2 or 4 bytes wide -> rung 2.

#include "portable.cuh"

extern "C" __global__ void residual_backward(
    real* __restrict__ dinp,        // (N)  accumulates
    const real* __restrict__ dout,  // (N)
    int N) {
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= N) return;  // the last block may have more threads than there are elements left
    dinp[i] = to_real(to_float(dinp[i]) + to_float(dout[i]));
}
