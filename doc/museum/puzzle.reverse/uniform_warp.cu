// puzzle reverse: the index of the warp is broadcast, so that the compiler knows it as uniform
// Needs:  warp == 32
// Define: SIZE = 64
// Launch: puzzle_reverse<<<N, SIZE>>>

#include "portable.cuh"

extern "C" __global__ void puzzle_reverse(
    float* __restrict__ out,      // (N, 64)
    const float* __restrict__ a,  // (N, 64)
    int N) {
    __shared__ float group[SIZE];
    const float* x = a + blockIdx.x * SIZE;  // (64)
    float* y = out + blockIdx.x * SIZE;      // (64)
    int warp = __shfl_sync(0xffffffff, threadIdx.x / WARP_SIZE, 0);
    int lane = threadIdx.x % WARP_SIZE;
    group[warp * WARP_SIZE + lane] = x[warp * WARP_SIZE + lane];
    __syncthreads();  // the group is complete before the other warp's half is read
    int other = SIZE / WARP_SIZE - 1 - warp;
    y[warp * WARP_SIZE + lane] = group[other * WARP_SIZE + WARP_SIZE - 1 - lane];
}
