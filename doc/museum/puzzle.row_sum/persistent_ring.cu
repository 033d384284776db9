// puzzle row_sum: a persistent kernel, whose ring of stages goes on from tile to tile
// Needs:  sm == 90; warp == 32; C % 4 == 0
// Define: STAGES = 2; ROWS = 32; DEPTH = 32; TILES = ceil_div(N, ROWS)
// Launch: puzzle_row_sum<<<min(TILES, multiprocessors), 2 * warp>>>
// Tiles:  a[ROWS, DEPTH]

#include "hopper.cuh"
#include "portable.cuh"

extern "C" __global__ void puzzle_row_sum(
    float* __restrict__ out,      // (N)
    const float* __restrict__ a,  // (N, C)
    int N, int C, const __grid_constant__ TensorMap a_tiles) {
    __shared__ __align__(1024) float tiles[STAGES][ROWS][DEPTH];
    __shared__ Mbarrier full[STAGES], empty[STAGES];
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(&full[stage], 1);
            mbarrier_init(&empty[stage], 1);
        }
    }
    __syncthreads();  // the barriers are initialized before any thread uses them

    Ring<STAGES> now;
    if (warp_id() == 1) {  // the producer
        for (int tile = blockIdx.x; lane_id() == 0 && tile < TILES; tile += gridDim.x) {
            for (int start = 0; start < C; start += DEPTH, now.next()) {
                mbarrier_wait(&empty[now.index], now.parity ^ 1);
                mbarrier_expect(&full[now.index], ROWS * DEPTH * sizeof(float));
                tma_load_2d(tiles[now.index], &a_tiles, &full[now.index], start, tile * ROWS);
            }
        }
        return;
    }
    for (int tile = blockIdx.x; tile < TILES; tile += gridDim.x) {
        float sum = 0.0f;
        for (int start = 0; start < C; start += DEPTH) {
            mbarrier_wait(&full[now.index], now.parity);
            for (int i = 0; i < DEPTH; i++) {
                sum += tiles[now.index][lane_id()][i];
            }
            mbarrier_arrive_warp(&empty[now.index]);
            now.next();  // also after the tile's last step
        }
        int row = tile * ROWS + lane_id();
        if (row < N) out[row] = sum;
    }
}
