// puzzle row_sum: a producer warp fills a ring of stages by TMA
// Needs:  sm == 90; warp == 32; C % 4 == 0
// Define: STAGES = 3; ROWS = 32; DEPTH = 32
// Launch: puzzle_row_sum<<<ceil_div(N, ROWS), 2 * warp>>>
// Tiles:  a[ROWS, DEPTH]

#include "hopper.cuh"
#include "portable.cuh"

extern "C" __global__ void puzzle_row_sum(
    float* __restrict__ out,      // (N)
    const float* __restrict__ a,  // (N, C)
    int N, int C, const __grid_constant__ TensorMap a_tiles) {
    __shared__ __align__(1024) float tiles[STAGES][ROWS][DEPTH];
    __shared__ Mbarrier full[STAGES], empty[STAGES];
    int row = blockIdx.x * ROWS;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(&full[stage], 1);   // arrivals: the producer's first lane
            mbarrier_init(&empty[stage], 1);  // arrivals: the consumer warp
        }
    }
    __syncthreads();  // the barriers are initialized before any thread uses them

    Ring<STAGES> now;
    if (warp_id() == 1) {  // the producer
        for (int start = 0; lane_id() == 0 && start < C; start += DEPTH, now.next()) {
            mbarrier_wait(&empty[now.index], now.parity ^ 1);  // the consumer has read it
            mbarrier_expect(&full[now.index], ROWS * DEPTH * sizeof(float));
            tma_load_2d(tiles[now.index], &a_tiles, &full[now.index], start, row);
        }
        return;
    }
    float sum = 0.0f;
    Mbarrier* ready = full;
    for (int start = 0; start < C; start += DEPTH, now.next()) {
        ready = &full[now.index];
        mbarrier_wait(ready, now.parity);  // the stage has arrived
        for (int i = 0; i < DEPTH; i++) {  // TMA's swizzle permutes a row, but not its sum
            sum += tiles[now.index][lane_id()][i];
        }
        mbarrier_arrive_warp(&empty[now.index]);  // all lanes have read the stage
    }
    if (row + lane_id() < N) out[row + lane_id()] = sum;
}
