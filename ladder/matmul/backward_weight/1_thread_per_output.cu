// matmul backward_weight, rung 1: one thread per output
// Before: the NumPy reference.
// Change: one thread for each of the OC * C elements of dweight computes the dot product of a
//         column of dout and a column of inp.
// Expect: far below the roof (the roofline ceiling: the limit that memory bandwidth and arithmetic
//         set). Each multiply-add needs two loads. They are coalesced: neighbouring lanes read
//         neighbouring columns of inp, and all lanes read the same element of dout. A sum has N
//         terms, many more than there are channels, and a small weight has few threads.
// Needs:  nothing
// Define: BLOCK = 256
// Launch: matmul_backward_weight<<<ceil_div(OC * C, BLOCK), BLOCK>>>
// Left:   all of dout is loaded C times, all of inp OC times -> rung 2.

#include "portable.cuh"

extern "C" __global__ void matmul_backward_weight(
    float* __restrict__ dweight,    // (OC, C)  accumulates
    const real* __restrict__ dout,  // (N, OC)
    const real* __restrict__ inp,   // (N, C)
    int N, int C, int OC) {
    size_t index = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (index >= (size_t)OC * C) return;
    int row = index / C, column = index % C;

    float sum = 0.0f;
    for (size_t i = 0; i < N; i++) {  // N * OC can exceed an int
        sum += to_float(dout[i * OC + row]) * to_float(inp[i * C + column]);
    }
    dweight[index] += sum;
}
