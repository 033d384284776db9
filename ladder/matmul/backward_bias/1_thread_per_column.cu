// matmul backward_bias, rung 1: one thread per column
// Before: the NumPy reference.
// Change: one thread for each of the OC columns of dout adds up the N rows.
// Expect: neighbouring lanes read neighbouring columns: the loads are coalesced, and no byte is
//         wasted. But 768 columns are 768 threads, a few per SM (streaming multiprocessor), and
//         each waits N times for one element. Latency sets the pace.
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
