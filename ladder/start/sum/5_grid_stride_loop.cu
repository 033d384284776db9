// start sum, rung 5: grid-stride loop, many elements per thread
// Before: rung 4 starts one thread per element, and does one atomic per warp.
// Change: the grid has as many threads as the GPU holds at once. They walk over the array together,
//         in strides of the grid (a grid-stride loop), and each accumulates in a register.
// Expect: a few thousand atomics, whatever N is. Bound by memory: 4 bytes for each addition.
// Needs:  real == float32
// Launch: start_sum<<<min(ceil_div(N, 256), 8 * multiprocessors), 256>>>
// Deterministic: no, the atomics of the warps come in any order
// After:  4
// Left:   vectorized (128-bit) loads, and a deterministic second pass: the layernorm ladder has
//         both.
#include "portable.cuh"

extern "C" __global__ void start_sum(float* total,      // (1), accumulated
                                     const float* inp,  // (N)
                                     int N) {
    float sum = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < N; i += gridDim.x * blockDim.x) {
        sum += inp[i];
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP_SIZE == 0) {
        atomicAdd(total, sum);
    }
}
