// matmul forward, rung 1: one thread per output
// Before: the NumPy reference.
// Change: one thread for each of the N * OC outputs computes the dot product of a row of inp and a
//         row of weight.
// Expect: far below the roof (the roofline ceiling: the limit that memory bandwidth and arithmetic
//         set). Each multiply-add needs two loads. Neighbouring lanes read rows of weight that are
//         C apart, so the loads are not coalesced: a warp's load touches one sector (32 bytes) per
//         lane.
// Needs:  nothing
// Define: BLOCK = 256
// Launch: matmul_forward<<<ceil_div(N * OC, BLOCK), BLOCK>>>
// Left:   the loads of weight are not coalesced -> rung 1b; every row of weight is loaded N times,
//         every row of inp OC times -> rung 2.

#include "portable.cuh"

extern "C" __global__ void matmul_forward(
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
