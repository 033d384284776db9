// residual backward, rung 3: instruction-level parallelism, several loads in flight
// Before: in rung 2, a thread waits for one pair of vectors.
// Change: a thread takes IN_FLIGHT vectors, BLOCK vectors apart. The loop is unrolled, and all
//         loads are issued before the first value is needed (instruction-level parallelism). The
//         accesses of a warp stay coalesced.
// Expect: by Little's law, the memory is busy if bandwidth * latency bytes are in flight. Where the
//         threads of rung 2 achieve that already, this changes little: fewer blocks to start.
// Needs:  N % vector == 0
// Define: BLOCK = 256; IN_FLIGHT = 4
// Launch: residual_backward<<<ceil_div(N, BLOCK * IN_FLIGHT * vector), BLOCK>>>
// Pays:   no, rung 2 is at the roof: enough warps have loads in flight already
// After:  2
// Left:   only the bytes themselves: a neighbouring kernel must do the addition (fusion).

#include "portable.cuh"

extern "C" __global__ void residual_backward(
    real* __restrict__ dinp,        // (N)  accumulates
    const real* __restrict__ dout,  // (N)
    int N) {
    size_t first = (size_t)blockIdx.x * BLOCK * IN_FLIGHT + threadIdx.x;  // counted in vectors
    Vec a[IN_FLIGHT], b[IN_FLIGHT];
#pragma unroll
    for (int j = 0; j < IN_FLIGHT; j++) {
        size_t i = (first + j * BLOCK) * VECTOR;
        if (i >= N) break;
        a[j] = load_vec(dinp + i);
        b[j] = load_vec(dout + i);
    }
#pragma unroll
    for (int j = 0; j < IN_FLIGHT; j++) {
        size_t i = (first + j * BLOCK) * VECTOR;
        if (i >= N) break;
        Vec sum;
        for (int k = 0; k < VECTOR; k++) {
            sum[k] = to_real(to_float(a[j][k]) + to_float(b[j][k]));
        }
        store_vec(dinp + i, sum);
    }
}
