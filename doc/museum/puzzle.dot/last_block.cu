// puzzle dot: the block that ends last adds the sums of all blocks
// Needs:  nothing
// Define: THREADS = 128; BLOCKS = ceil_div(N, THREADS)
// Launch: puzzle_dot<<<BLOCKS, THREADS>>>
// Scratch: float32 sums[BLOCKS]; flag ended[1]

#include "portable.cuh"

extern "C" __global__ void puzzle_dot(
    float* __restrict__ out,      // (1)
    const float* __restrict__ a,  // (N)
    const float* __restrict__ b,  // (N)
    int N, float* __restrict__ sums, unsigned* __restrict__ ended) {
    __shared__ float of_warp[THREADS / WARP_SIZE];
    int i = blockIdx.x * THREADS + threadIdx.x;
    float sum = warp_sum(i < N ? a[i] * b[i] : 0.0f);
    if (lane_id() == 0) of_warp[warp_id()] = sum;
    __syncthreads();  // the sums of all warps are written
    if (threadIdx.x == 0) {
        sum = 0.0f;
        for (int w = 0; w < THREADS / WARP_SIZE; w++) sum += of_warp[w];
        sums[blockIdx.x] = sum;
        __threadfence();  // the sum is visible to all blocks before the count is
        bool last = atomicAdd(ended, 1u) == gridDim.x - 1;
        if (last) {
            __threadfence();  // what the others wrote is read after their count
            float total = 0.0f;
            for (int block = 0; block < gridDim.x; block++) total += sums[block];
            out[0] = total;
            *ended = 0;  // for the next launch
        }
    }
}
