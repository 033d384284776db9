// relu forward, rung 2: vectorized (128-bit) loads and stores
// Before: in rung 1, one instruction moves 2 or 4 bytes per lane.
// Change: a thread takes VECTOR neighbouring elements, and moves them with one 16-byte (128-bit)
//         instruction.
// Expect: 4 to 8 times fewer memory instructions for the same sectors, and 4 to 8 times the bytes
//         in flight per warp. The effect is largest in 16 bits.
// Needs:  N % vector == 0
// Define: BLOCK = 256
// Launch: relu_forward<<<ceil_div(N, BLOCK * vector), BLOCK>>>
// After:  1
// Left:   a thread loads once, waits, stores and ends -> rung 3.

#include "portable.cuh"

// Not fmaxf(x, 0): it returns 0 for NaN, and so would hide it.
__device__ float relu(float x) { return x < 0.0f ? 0.0f : x; }

extern "C" __global__ void relu_forward(
    real* __restrict__ out,        // (N)
    const real* __restrict__ inp,  // (N)
    int N) {
    size_t i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * VECTOR;
    if (i >= N) return;  // the last block may have more threads than there are vectors left
    Vec xs = load_vec(inp + i), ys;
    for (int k = 0; k < VECTOR; k++) {
        ys[k] = to_real(relu(to_float(xs[k])));
    }
    store_vec(out + i, ys);
}
