// matmul backward_bias, rung 6: narrower strips for more clusters (tile shape)
// Before: rung 5 has a cluster of 8 blocks for 64 columns. At OC = 384 these are 48 blocks, and
//         most SMs (streaming multiprocessors) have none.
// Change: a strip is 32 columns wide, so there are twice as many blocks.
// Expect: faster where rung 5 leaves SMs idle, and where a block has much to load for what it
//         costs to start and to add up. A row of a strip is 64 bytes in 16 bits, which are still
//         whole sectors (32 bytes). Where clusters were many already, there are only more of them.
// Needs:  sm >= 90; warp == 32; OC % vector == 0
// Define: BLOCKS = 8; COLUMNS = 32; STRIPS = ceil_div(OC, COLUMNS); LANES = COLUMNS // vector;
//         WARPS = 32 if BLOCKS * STRIPS <= multiprocessors else 16; ROWS = WARPS * warp // LANES
// Launch: matmul_backward_bias<<<BLOCKS * STRIPS, WARPS * warp>>>
// After:  5
// Left:   dout is read once more than needed: the kernel that wrote it could have added it up.

#include "hopper.cuh"
#include "portable.cuh"

extern "C" __global__ void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(WARPS * WARP_SIZE)
matmul_backward_bias(
    float* __restrict__ dbias,      // (OC)  accumulates
    const real* __restrict__ dout,  // (N, OC)
    int N, int OC) {
    __shared__ float sums[WARPS][COLUMNS], total[COLUMNS];
    int rank = cluster_rank(), first = blockIdx.x / BLOCKS * COLUMNS;
    int column = first + threadIdx.x % LANES * VECTOR;

    float sum[VECTOR] = {};
#pragma unroll 8  // eight loads are in flight before the first value is added
    for (int row = rank * ROWS + threadIdx.x / LANES; row < N && column < OC;
         row += BLOCKS * ROWS) {
        Vec v = load_vec(dout + (size_t)row * OC + column);
        for (int k = 0; k < VECTOR; k++) {
            sum[k] += to_float(v[k]);
        }
    }
    for (int k = 0; k < VECTOR; k++) {
        for (int distance = LANES; distance < WARP_SIZE; distance *= 2) {  // over a warp's rows
            sum[k] += shuffle_xor(sum[k], distance);
        }
        if (lane_id() < LANES) sums[warp_id()][lane_id() * VECTOR + k] = sum[k];
    }
    __syncthreads();  // all warps have written their sums before they are read
    if (threadIdx.x < COLUMNS) {
        float all = 0.0f;
        for (int warp = 0; warp < WARPS; warp++) {
            all += sums[warp][threadIdx.x];
        }
        total[threadIdx.x] = all;
    }
    __syncwarp();  // all lanes must reach cluster_barrier together
    cluster_barrier();  // all blocks have written their totals before others read them

    constexpr int SHARE = COLUMNS / BLOCKS;  // columns that each block adds up
    int own = rank * SHARE + threadIdx.x;
    if (threadIdx.x < SHARE && first + own < OC) {
        float all = 0.0f;
        for (int block = 0; block < BLOCKS; block++) {
            all += *cluster_shared(&total[own], block);
        }
        dbias[first + own] += all;
    }
    __syncwarp();  // all lanes must reach cluster_barrier together
    cluster_barrier();  // no block ends while others still read its shared memory
}
