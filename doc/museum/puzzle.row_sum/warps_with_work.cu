// puzzle row_sum: each warp loads a row for its neighbour, in rounds with a barrier
// Needs:  nothing
// Define: WARPS = 4; CHUNK = 64
// Launch: puzzle_row_sum<<<ceil_div(N, WARPS), WARPS * warp>>>

#include "portable.cuh"

extern "C" __global__ void puzzle_row_sum(
    float* __restrict__ out,      // (N)
    const float* __restrict__ a,  // (N, C)
    int N, int C) {
    __shared__ float chunks[WARPS][CHUNK];
    int first = blockIdx.x * WARPS;                 // row of the block's first warp
    int loaded = first + (warp_id() + 1) % WARPS;   // the row that this warp loads
    int row = first + warp_id();                    // and the one that it adds
    float sum = 0.0f;
    for (int start = 0; start < C; start += CHUNK) {
        for (int i = lane_id(); i < CHUNK; i += WARP_SIZE) {
            bool inside = loaded < N && start + i < C;
            chunks[loaded - first][i] = inside ? a[(size_t)loaded * C + start + i] : 0.0f;
        }
        __syncthreads();  // the chunks are written
        if (row < N) {
            for (int i = lane_id(); i < CHUNK; i += WARP_SIZE) sum += chunks[row - first][i];
        }
        __syncthreads();  // they are read before the next ones overwrite them
    }
    sum = warp_sum(sum);
    if (row < N && lane_id() == 0) out[row] = sum;
}
