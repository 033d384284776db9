// decode linear, rung 1: one thread per output
// Before: the NumPy reference.
// Change: one thread for each of the N * OC outputs computes the dot product of a row of inp and a
//         row of weight.
// Expect: far below the roof. Neighbouring lanes read rows of weight that are C apart (not
//         coalesced): a warp's load touches one sector (32 bytes) per lane. For one row, 768
//         outputs are 768 threads, which fill 3 of 132 SMs (streaming multiprocessors).
// Needs:  nothing
// Define: BLOCK = 256
// Launch: decode_linear<<<ceil_div(N * OC, BLOCK), BLOCK>>>
// Left:   the loads are not coalesced, and there are few threads -> rung 2.

#include "portable.cuh"

extern "C" __global__ void decode_linear(
    real* __restrict__ out,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC), or null
    int N, int C, int OC) {
    size_t index = (size_t)blockIdx.x * BLOCK + threadIdx.x;  // N * OC can exceed an int
    if (index >= (size_t)N * OC) return;
    int row = index / OC, column = index % OC;
    const real* x = inp + (size_t)row * C;        // (C)
    const real* w = weight + (size_t)column * C;  // (C)

    float sum = bias ? to_float(bias[column]) : 0.0f;
    for (int i = 0; i < C; i++) {
        sum += to_float(x[i]) * to_float(w[i]);
    }
    out[index] = to_real(sum);
}
