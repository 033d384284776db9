// relu forward, rung 3: instruction-level parallelism, several loads in flight
// Before: in rung 2, a thread waits for one vector.
// Change: a thread takes IN_FLIGHT vectors, BLOCK vectors apart. The loop is unrolled, and all
//         loads are issued before the first value is needed (instruction-level parallelism). The
//         accesses of a warp stay coalesced.
// Expect: by Little's law, the memory is busy if bandwidth * latency bytes are in flight. Where the
//         threads of rung 2 achieve that already, this changes little: fewer blocks to start.
// Needs:  N % vector == 0
// Define: BLOCK = 256; IN_FLIGHT = 4
// Launch: relu_forward<<<ceil_div(N, BLOCK * IN_FLIGHT * vector), BLOCK>>>
// Pays:   no, rung 2 is at the roof: enough warps have loads in flight already
// After:  2
// Left:   only the bytes themselves: the matmul before it could do this, too (fusion).

#include "portable.cuh"

// Not fmaxf(x, 0): it returns 0 for NaN, and so would hide it.
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
