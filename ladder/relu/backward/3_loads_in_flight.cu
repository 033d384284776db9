// relu backward, rung 3: several loads in flight
// Before: rung 2's threads each wait for one pair of vectors.
// Change: a thread takes IN_FLIGHT vectors, BLOCK apart, and asks for all of them before it needs
//         the first: the addresses of a warp stay neighbours.
// Expect: by Little's law the memory is busy if bandwidth * latency bytes are under way. Where the
//         threads of rung 2 already see to that, this changes little: fewer blocks to start.
// Needs:  N % vector == 0
// Define: BLOCK = 256; IN_FLIGHT = 4
// Launch: relu_backward<<<ceil_div(N, BLOCK * IN_FLIGHT * vector), BLOCK>>>
// Pays:   no, rung 2 is at the roof: enough warps wait at the same time already
// After:  2
// Left:   out is read for one bit of each number: the forward pass could leave these bits behind.

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
