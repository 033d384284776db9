// relu forward, rung 1: one thread per element
// Before: the NumPy reference.
// Change: a thread for each of the N elements. It finds out which one is its own, loads it, sets it
//         to 0 if it is negative, and stores it.
// Expect: memory-bound: one comparison for 2 * sizeof(real) bytes. Neighbouring lanes touch
//         neighbouring addresses, so no byte of a sector is wasted; but in 16 bits a warp asks for
//         only 64 bytes at a time, and too little may be in flight.
// Needs:  nothing
// Define: BLOCK = 256
// Launch: relu_forward<<<ceil_div(N, BLOCK), BLOCK>>>
// Left:   loads are 2 or 4 bytes wide -> rung 2.

#include "portable.cuh"

// Not fmaxf(x, 0), which makes 0 of what is not a number, and hides it.
__device__ float relu(float x) { return x < 0.0f ? 0.0f : x; }

extern "C" __global__ void relu_forward(
    real* __restrict__ out,        // (N)
    const real* __restrict__ inp,  // (N)
    int N) {
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= N) return;  // the last block may have more threads than there are elements left
    out[i] = to_real(relu(to_float(inp[i])));
}
