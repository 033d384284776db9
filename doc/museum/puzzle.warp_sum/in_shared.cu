// puzzle warp_sum: a warp adds 32 elements in shared memory, by halves
// Needs:  warp == 32
// Define: WARPS = 4
// Launch: puzzle_warp_sum<<<ceil_div(N, WARPS), WARPS * warp>>>

#include "portable.cuh"

extern "C" __global__ void puzzle_warp_sum(
    float* __restrict__ out,      // (N)
    const float* __restrict__ a,  // (N, 32)
    int N) {
    __shared__ float elements[WARPS][WARP_SIZE];
    int row = blockIdx.x * WARPS + warp_id(), lane = lane_id();
    if (row >= N) return;  // the whole warp
    float* own = elements[warp_id()];
    own[lane] = a[row * WARP_SIZE + lane];
    for (int distance = WARP_SIZE / 2; distance > 0; distance /= 2) {
        __syncwarp();  // the lanes have written the step before
        if (lane < distance) own[lane] += own[lane + distance];
    }
    if (lane == 0) out[row] = own[0];
}
