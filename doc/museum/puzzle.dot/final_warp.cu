// puzzle dot: sums of warps by shuffles, then the sum of these by shuffles of one warp
// Needs:  warp == 32
// Define: THREADS = 256; WARPS = THREADS // warp
// Launch: puzzle_dot<<<1, THREADS>>>

#include "portable.cuh"

__device__ float reduce(unsigned mask, float sum) {
    for (int distance = WARP_SIZE / 2; distance > 0; distance /= 2) {
        sum += __shfl_down_sync(mask, sum, distance);
    }
    return sum;
}

extern "C" __global__ void puzzle_dot(
    float* __restrict__ out,      // (1)
    const float* __restrict__ a,  // (N)
    const float* __restrict__ b,  // (N)
    int N) {
    __shared__ float of_warp[WARPS];
    float sum = 0.0f;
    for (int i = threadIdx.x; i < N; i += THREADS) sum += a[i] * b[i];
    sum = reduce(0xffffffff, sum);
    if (lane_id() == 0) of_warp[warp_id()] = sum;
    __syncthreads();  // the sums of all warps are written
    constexpr int LANES = WARP_SIZE;  // of the first warp, that take part
    if (threadIdx.x < LANES) {
        sum = threadIdx.x < WARPS ? of_warp[threadIdx.x] : 0.0f;
        sum = reduce(0xffffffff >> (WARP_SIZE - LANES), sum);
        if (threadIdx.x == 0) out[0] = sum;
    }
}
