// start sum: one atomic for each block
// Needs:  real == float32
// Launch: start_sum<<<min(ceil_div(N, 256), 8 * multiprocessors), 256>>>
// Deterministic: no, the atomics of the warps come in any order
// After:  5
#include "portable.cuh"

extern "C" __global__ void start_sum(float* total,      // (1), accumulated
                                     const float* inp,  // (N)
                                     int N) {
    __shared__ float partial[256 / WARP_SIZE];
    float sum = 0.0f;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < N; i += gridDim.x * blockDim.x) {
        sum += inp[i];
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP_SIZE == 0) {
        partial[threadIdx.x / WARP_SIZE] = sum;
    }
    __syncthreads();  // the sums of all warps are written before one warp reads them
    if (threadIdx.x < WARP_SIZE) {
        sum = warp_sum(threadIdx.x < 256 / WARP_SIZE ? partial[threadIdx.x] : 0.0f);
        if (threadIdx.x == 0) {
            atomicAdd(total, sum);
        }
    }
}
