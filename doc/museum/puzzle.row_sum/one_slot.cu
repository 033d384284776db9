// puzzle row_sum: tiles in flight in several stages, one barrier that ends a phase for each tile
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
    __shared__ Mbarrier loaded, added;  // a phase of each is one tile
    int row = blockIdx.x * ROWS;
    if (threadIdx.x == 0) {
        mbarrier_init(&loaded, 1);
        mbarrier_init(&added, WARP_SIZE);
    }
    __syncthreads();  // the barriers are initialized before any thread uses them

    int tile_count = (C + DEPTH - 1) / DEPTH;
    if (warp_id() == 1) {  // the producer is one tile ahead at most
        for (int k = 0; lane_id() == 0 && k < tile_count; k++) {
            if (k > 0) mbarrier_wait(&added, (k - 1) % 2);  // tile k - 1 has been added
            mbarrier_expect(&loaded, ROWS * DEPTH * sizeof(float));
            tma_load_2d(tiles[k % STAGES], &a_tiles, &loaded, k * DEPTH, row);
        }
        return;
    }
    float sum = 0.0f;
    for (int k = 0; k < tile_count; k++) {
        mbarrier_wait(&loaded, k % 2);  // tile k has arrived
        for (int i = 0; i < DEPTH; i++) {
            sum += tiles[k % STAGES][lane_id()][i];
        }
        mbarrier_arrive(&added);
    }
    if (row + lane_id() < N) out[row + lane_id()] = sum;
}
