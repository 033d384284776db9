// gelu forward, rung 1: one thread per element
// Before: the NumPy reference.
// Change: one thread for each of the N elements computes the formula as it is written.
// Expect: at least 2 * sizeof(real) bytes per element, in loads of 2 or 4 bytes, and some fifty
//         instructions. In 16 bits, the instructions take longer than the memory.
// Needs:  nothing
// Define: BLOCK = 256
// Launch: gelu_forward<<<ceil_div(N, BLOCK), BLOCK>>>
// Left:   loads are 2 or 4 bytes wide -> rung 2.

#include "portable.cuh"

constexpr float SCALE = 0.7978845608f;  // sqrt(2 / pi)
constexpr float CUBIC = 0.044715f;

__device__ float gelu(float x) {
    float u = SCALE * (x + CUBIC * x * x * x);
    return 0.5f * x * (1.0f + tanhf(u));
}

extern "C" __global__ void gelu_forward(
    real* __restrict__ out,        // (N)
    const real* __restrict__ inp,  // (N)
    int N) {
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= N) return;  // the last block may have more threads than there are elements left
    out[i] = to_real(gelu(to_float(inp[i])));
}
