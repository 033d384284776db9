// relu backward, rung 3: instruction-level parallelism, several loads in flight
// Before: in rung 2, a thread waits for one pair of vectors.
// Change: a thread takes IN_FLIGHT vectors, BLOCK vectors apart. The loop is unrolled, and all
//         loads are issued before the first value is needed (instruction-level parallelism). The
//         accesses of a warp stay coalesced.
// Expect: by Little's law, the memory is busy if bandwidth * latency bytes are in flight. Where the
//         threads of rung 2 achieve that already, this changes little: fewer blocks to start.
// Needs:  N % vector == 0
// Define: BLOCK = 256; IN_FLIGHT = 4
// Launch: relu_backward<<<ceil_div(N, BLOCK * IN_FLIGHT * vector), BLOCK>>>
// Pays:   no, rung 2 is at the roof: enough warps have loads in flight already
// After:  2
// Left:   out is read for one bit of each element: the forward pass could store these bits.

#include "portable.cuh"

extern "C" __global__ void relu_backward(
    real* __restrict__ dinp,        // (N)
    const real* __restrict__ dout,  // (N)
    const real* __restrict__ out,   // (N)
    int N) {
    size_t first = (size_t)blockIdx.x * BLOCK * IN_FLIGHT + threadIdx.x;  // counted in vectors
    Vec dys[IN_FLIGHT], ys[IN_FLIGHT];
#pragma unroll
    for (int j = 0; j < IN_FLIGHT; j++) {
        size_t i = (first + j * BLOCK) * VECTOR;
        if (i >= N) break;
        dys[j] = load_vec(dout + i);
        ys[j] = load_vec(out + i);
    }
#pragma unroll
    for (int j = 0; j < IN_FLIGHT; j++) {
        size_t i = (first + j * BLOCK) * VECTOR;
        if (i >= N) break;
        Vec dxs;
        for (int k = 0; k < VECTOR; k++) {
            dxs[k] = to_float(ys[j][k]) > 0.0f ? dys[j][k] : to_real(0.0f);
        }
        store_vec(dinp + i, dxs);
    }
}
