// start sum, rung 5: a fixed crowd of threads, each adds up many elements first
// Before: rung 4 starts a thread, and a share of an atomic, for every element.
// Change: as many threads as the GPU can hold walk over the array together and sum in a register.
// Expect: a few thousand atomics whatever N is; bound by memory, 4 bytes for every addition.
// Needs:  real == float32
// Launch: start_sum<<<min(ceil_div(N, 256), 8 * multiprocessors), 256>>>
// Deterministic: no, the warps' atomics come in any order
// After:  4
// Left:   16-byte loads, and a deterministic second pass: both are in the layernorm ladder.
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
