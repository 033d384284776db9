// residual forward, rung 3: several loads in flight
// Before: rung 2's threads each wait for one pair of vectors.
// Change: a thread takes IN_FLIGHT vectors, BLOCK apart, and asks for all of them before it needs
//         the first: the addresses of a warp stay neighbours.
// Expect: by Little's law the memory is busy if bandwidth * latency bytes are under way. Where the
//         threads of rung 2 already see to that, this changes little: fewer blocks to start.
// Needs:  N % vector == 0
// Define: BLOCK = 256; IN_FLIGHT = 4
// Launch: residual_forward<<<ceil_div(N, BLOCK * IN_FLIGHT * vector), BLOCK>>>
// Pays:   no, rung 2 is at the roof: enough warps wait at the same time already
// After:  2
// Left:   nothing but the bytes: a neighbour in the program must do the sum on its way (fusion).

#include "portable.cuh"

extern "C" __global__ void residual_forward(
    real* __restrict__ out,         // (N)
    const real* __restrict__ inp1,  // (N)
    const real* __restrict__ inp2,  // (N)
    int N) {
    size_t first = (size_t)blockIdx.x * BLOCK * IN_FLIGHT + threadIdx.x;  // counted in vectors
    Vec a[IN_FLIGHT], b[IN_FLIGHT];
#pragma unroll
    for (int j = 0; j < IN_FLIGHT; j++) {
        size_t i = (first + j * BLOCK) * VECTOR;
        if (i >= N) break;
        a[j] = load_vec(inp1 + i);
        b[j] = load_vec(inp2 + i);
    }
#pragma unroll
    for (int j = 0; j < IN_FLIGHT; j++) {
        size_t i = (first + j * BLOCK) * VECTOR;
        if (i >= N) break;
        Vec sum;
        for (int k = 0; k < VECTOR; k++) {
            sum[k] = to_real(to_float(a[j][k]) + to_float(b[j][k]));
        }
        store_vec(out + i, sum);
    }
}
