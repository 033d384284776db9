// relu backward: both loads before the condition
// Define: BLOCK = 256
// Launch: relu_backward<<<ceil_div(N, BLOCK), BLOCK>>>
// After:  1

#include "portable.cuh"

extern "C" __global__ void relu_backward(
    real* __restrict__ dinp,        // (N)
    const real* __restrict__ dout,  // (N)
    const real* __restrict__ out,   // (N)
    int N) {
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= N) return;  // the last block may have more threads than there are elements left
    real y = out[i], dy = dout[i];
    dinp[i] = to_float(y) > 0.0f ? dy : to_real(0.0f);
}
