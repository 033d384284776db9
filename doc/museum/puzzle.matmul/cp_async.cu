// puzzle matmul: each warp copies its rows of a tile of b by cp.async, all warps read all of it
// Needs:  warp == 32; N % 4 == 0
// Define: DEPTH = 16; WIDE = 64; WARPS = 4
// Launch: puzzle_matmul<<<(ceil_div(N, WIDE), M), WARPS * warp>>>

#include "async.cuh"
#include "portable.cuh"

extern "C" __global__ void puzzle_matmul(
    float* __restrict__ out,      // (M, N)
    const float* __restrict__ a,  // (M, K)
    const float* __restrict__ b,  // (K, N)
    int M, int N, int K) {
    __shared__ __align__(16) float tile[DEPTH][WIDE];
    int column = blockIdx.x * WIDE, row = blockIdx.y;
    float sum = 0.0f;
    for (int start = 0; start < K; start += DEPTH) {
        for (int r = warp_id(); r < DEPTH; r += WARPS) {  // a warp's rows of the tile
            int k = start + r, c = lane_id() * 4;
            bool inside = k < K && column + c < N;
            if (c < WIDE) {
                cp_async_16_or_zero(&tile[r][c], inside ? b + (size_t)k * N + column + c : b,
                                    inside);
            }
        }
        cp_async_commit();
        cp_async_wait<0>();  // this thread's copies have arrived
        __syncthreads();     // ... and those of all other warps
        for (int r = 0; threadIdx.x < WIDE && r < DEPTH && start + r < K; r++) {
            sum += a[(size_t)row * K + start + r] * tile[r][threadIdx.x];
        }
        __syncthreads();  // all warps have read the tile before it is overwritten
    }
    if (threadIdx.x < WIDE && column + threadIdx.x < N) {
        out[(size_t)row * N + column + threadIdx.x] = sum;
    }
}
