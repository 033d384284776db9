// relu forward, rung 3: several loads in flight
// Before: rung 2's threads each wait for one vector.
// Change: a thread takes IN_FLIGHT vectors, BLOCK apart, and asks for all of them before it needs
//         the first: the addresses of a warp stay neighbours.
// Expect: by Little's law the memory is busy if bandwidth * latency bytes are under way. Where the
//         threads of rung 2 already see to that, this changes little: fewer blocks to start.
// Needs:  N % vector == 0
// Define: BLOCK = 256; IN_FLIGHT = 4
// Launch: relu_forward<<<ceil_div(N, BLOCK * IN_FLIGHT * vector), BLOCK>>>
// Pays:   no, rung 2 is at the roof: enough warps wait at the same time already
// After:  2
// Left:   nothing but the bytes: the product before it could do this on its way (fusion).

#include "portable.cuh"

// Not fmaxf(x, 0), which makes 0 of what is not a number, and hides it.
__device__ float relu(float x) { return x < 0.0f ? 0.0f : x; }

extern "C" __global__ void relu_forward(
    real* __restrict__ out,        // (N)
    const real* __restrict__ inp,  // (N)
    int N) {
    size_t first = (size_t)blockIdx.x * BLOCK * IN_FLIGHT + threadIdx.x;  // counted in vectors
    Vec xs[IN_FLIGHT];
#pragma unroll
    for (int j = 0; j < IN_FLIGHT; j++) {
        size_t i = (first + j * BLOCK) * VECTOR;
        if (i >= N) break;
        xs[j] = load_vec(inp + i);
    }
#pragma unroll
    for (int j = 0; j < IN_FLIGHT; j++) {
        size_t i = (first + j * BLOCK) * VECTOR;
        if (i >= N) break;
        Vec ys;
        for (int k = 0; k < VECTOR; k++) {
            ys[k] = to_real(relu(to_float(xs[j][k])));
        }
        store_vec(out + i, ys);
    }
}
