// relu forward, rung 1: one thread per element
// Before: the NumPy reference.
// Change: one thread for each of the N elements. It computes the index of its element, loads it,
//         sets it to 0 if it is negative, and stores it.
// Expect: memory-bound: one comparison for 2 * sizeof(real) bytes. Neighbouring lanes access
//         neighbouring addresses (coalesced), so all bytes of a sector are used. But in 16 bits a
//         warp requests only 64 bytes at a time, and too few bytes may be in flight.
// Needs:  nothing
// Define: BLOCK = 256
// Launch: relu_forward<<<ceil_div(N, BLOCK), BLOCK>>>
// Left:   loads are 2 or 4 bytes wide -> rung 2.

#include "portable.cuh"

// Not fmaxf(x, 0): it returns 0 for NaN, and so would hide it.
__device__ float relu(float x) { return x < 0.0f ? 0.0f : x; }

extern "C" __global__ void relu_forward(
    real* __restrict__ out,        // (N)
    const real* __restrict__ inp,  // (N)
    int N) {
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= N) return;  // the last block may have more threads than there are elements left
    out[i] = to_real(relu(to_float(inp[i])));
}
