// gelu backward, rung 2: vectorized (128-bit) loads and stores
// Before: in rung 1, one instruction moves 2 or 4 bytes per lane.
// Change: a thread takes VECTOR neighbouring elements, and moves them with one 16-byte (128-bit)
//         instruction.
// Expect: 4 to 8 times fewer memory instructions and address computations. The formula is as long
//         as before, and in 16 bits it still takes about as long as the memory.
// Needs:  N % vector == 0
// Define: BLOCK = 256
// Launch: gelu_backward<<<ceil_div(N, BLOCK * vector), BLOCK>>>
// After:  1
// Left:   most of the instructions are those of tanhf -> rung 3.

#include "portable.cuh"

constexpr float SCALE = 0.7978845608f;  // sqrt(2 / pi)
constexpr float CUBIC = 0.044715f;

__device__ float gelu_slope(float x) {
    float t = tanhf(SCALE * (x + CUBIC * x * x * x));
    float du = SCALE * (1.0f + 3.0f * CUBIC * x * x);  // du/dx
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * du;
}

extern "C" __global__ void gelu_backward(
    real* __restrict__ dinp,        // (N)
    const real* __restrict__ dout,  // (N)
    const real* __restrict__ inp,   // (N)
    int N) {
    size_t i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * VECTOR;
    if (i >= N) return;  // the last block may have more threads than there are vectors left
    Vec dys = load_vec(dout + i), xs = load_vec(inp + i), dxs;
    for (int k = 0; k < VECTOR; k++) {
        dxs[k] = to_real(to_float(dys[k]) * gelu_slope(to_float(xs[k])));
    }
    store_vec(dinp + i, dxs);
}
