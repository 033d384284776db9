// start sum, rung 4: warps add up in registers
// Before: rung 3 goes through shared memory, with a barrier, for each of its 8 steps.
// Change: the lanes of a warp hand each other their sums by shuffles; one atomic per warp.
// Expect: no shared memory and no barrier; 8 times the atomics of rung 3.
// Needs:  real == float32
// Launch: start_sum<<<ceil_div(N, 256), 256>>>
// Deterministic: no, the warps' atomics come in any order
// Pays:   no, the atomics, one for every warp, wait for each other at one address
// After:  3
// Left:   each thread loads 4 bytes and is done: too little work in flight -> rung 5.
#include "portable.cuh"

extern "C" __global__ void start_sum(float* total,      // (1), accumulated
                                     const float* inp,  // (N)
                                     int N) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = warp_sum(i < N ? inp[i] : 0.0f);
    if (threadIdx.x % WARP_SIZE == 0) {
        atomicAdd(total, sum);
    }
}
