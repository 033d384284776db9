// matmul backward_bias, rung 1: one thread per column
// Before: the NumPy reference.
// Change: a thread for each of the OC columns of dout; it adds up the N rows.
// Expect: neighbouring lanes read neighbouring columns, so no byte is wasted. But 768 columns are
//         768 threads, a few on each multiprocessor, and each waits N times for one number: latency
//         sets the pace.
// Needs:  nothing
// Define: BLOCK = 64
// Launch: matmul_backward_bias<<<ceil_div(OC, BLOCK), BLOCK>>>
// Left:   too few threads -> rung 2.

#include "portable.cuh"

extern "C" __global__ void matmul_backward_bias(
    float* __restrict__ dbias,      // (OC)  accumulates
    const real* __restrict__ dout,  // (N, OC)
    int N, int OC) {
    int column = blockIdx.x * BLOCK + threadIdx.x;
    if (column >= OC) return;

    float sum = 0.0f;
    for (int row = 0; row < N; row++) {
        sum += to_float(dout[(size_t)row * OC + column]);
    }
    dbias[column] += sum;
}
