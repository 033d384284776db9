// matmul backward_input, rung 1: one thread per output
// Before: the NumPy reference.
// Change: one thread for each of the N * C elements of dinp computes the dot product of a row of
//         dout and a column of weight.
// Expect: far below the roof (the roofline ceiling: the limit that memory bandwidth and arithmetic
//         set). Each multiply-add needs two loads. At least these are coalesced: neighbouring lanes
//         read neighbouring columns of weight, and all lanes read the same element of dout.
// Needs:  nothing
// Define: BLOCK = 256
// Launch: matmul_backward_input<<<ceil_div(N * C, BLOCK), BLOCK>>>
// Left:   every row of dout is loaded C times, all of weight N times -> rung 2.

#include "portable.cuh"

extern "C" __global__ void matmul_backward_input(
    real* __restrict__ dinp,          // (N, C)
    const real* __restrict__ dout,    // (N, OC)
    const real* __restrict__ weight,  // (OC, C)
    int N, int C, int OC) {
    size_t index = (size_t)blockIdx.x * BLOCK + threadIdx.x;  // N * C can exceed an int
    if (index >= (size_t)N * C) return;
    int row = index / C, column = index % C;
    const real* dy = dout + (size_t)row * OC;  // (OC)

    float sum = 0.0f;
    for (int i = 0; i < OC; i++) {
        sum += to_float(dy[i]) * to_float(weight[(size_t)i * C + column]);
    }
    dinp[index] = to_real(sum);
}
