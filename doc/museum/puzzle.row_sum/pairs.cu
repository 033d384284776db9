// puzzle row_sum: a warp per row, two elements a load
// Needs:  nothing
// Define: WARPS = 4
// Launch: puzzle_row_sum<<<ceil_div(N, WARPS), WARPS * warp>>>

#include "portable.cuh"

extern "C" __global__ void puzzle_row_sum(
    float* __restrict__ out,      // (N)
    const float* __restrict__ a,  // (N, C)
    int N, int C) {
    int row = blockIdx.x * WARPS + warp_id();
    if (row >= N) return;  // the whole warp
    const float* x = a + (size_t)row * C;  // (C)
    bool aligned = (size_t)x % sizeof(float2) == 0;  // not so for every other row if C is odd
    int pairs = aligned ? C / 2 : 0;
    float sum = 0.0f;
    for (int i = lane_id(); i < pairs; i += WARP_SIZE) {
        float2 pair = reinterpret_cast<const float2*>(x)[i];
        sum += pair.x + pair.y;
    }
    for (int i = 2 * pairs + lane_id(); i < C; i += WARP_SIZE) sum += x[i];
    sum = warp_sum(sum);
    if (lane_id() == 0) out[row] = sum;
}
