// start sum, rung 4: warp shuffle reduction
// Before: rung 3 goes through shared memory, with a barrier, in each of its 8 steps.
// Change: the lanes of a warp add their elements with shuffles, which read the register of another
//         lane (warp_sum). One lane per warp does an atomic addition.
// Expect: no shared memory and no barrier, but 8 times the atomics of rung 3.
// Needs:  real == float32
// Launch: start_sum<<<ceil_div(N, 256), 256>>>
// Deterministic: no, the atomics of the warps come in any order
// Pays:   no, the atomics, one per warp, are executed one after the other at one address
// After:  3
// Left:   a warp adds 32 elements before its atomic; it should add more -> rung 5.
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
