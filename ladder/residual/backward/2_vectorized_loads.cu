// residual backward, rung 2: vectorized (128-bit) loads and stores
// Before: in rung 1, one instruction moves 2 or 4 bytes per lane.
// Change: a thread takes VECTOR neighbouring elements, and moves them with one 16-byte (128-bit)
//         instruction.
// Expect: 4 to 8 times fewer memory instructions for the same sectors, and 4 to 8 times the bytes
//         in flight per warp. The effect is largest in 16 bits.
// Needs:  N % vector == 0
// Define: BLOCK = 256
// Launch: residual_backward<<<ceil_div(N, BLOCK * vector), BLOCK>>>
// After:  1
// Left:   a thread loads once, waits, stores and ends -> rung 3.

#include "portable.cuh"

extern "C" __global__ void residual_backward(
    real* __restrict__ dinp,        // (N)  accumulates
    const real* __restrict__ dout,  // (N)
    int N) {
    size_t i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * VECTOR;
    if (i >= N) return;  // the last block may have more threads than there are vectors left
    Vec a = load_vec(dinp + i), b = load_vec(dout + i), sum;
    for (int k = 0; k < VECTOR; k++) {
        sum[k] = to_real(to_float(a[k]) + to_float(b[k]));
    }
    store_vec(dinp + i, sum);
}
