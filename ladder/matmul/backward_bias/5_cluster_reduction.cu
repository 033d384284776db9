// matmul backward_bias, rung 5: cluster reduction in distributed shared memory
// Before: rung 4 writes partial sums to memory, and a second kernel adds them up. That kernel is
//         short, but it starts only when the last block of the first has ended.
// Change: a strip is 64 columns wide (128 bytes in 16 bits), and a cluster of 8 blocks shares its
//         rows. When the blocks have their sums, each adds up an eighth of the columns, and reads
//         the other blocks' shared memory for this (distributed shared memory). There is one
//         kernel, and still a fixed order. Where there are fewer blocks than SMs, they have 32
//         warps instead of 16: more loads in flight.
// Expect: the time of one launch less. This is much at N = 4096.
// Needs:  sm >= 90; warp == 32; OC % vector == 0
// Define: BLOCKS = 8; COLUMNS = 64; STRIPS = ceil_div(OC, COLUMNS); LANES = COLUMNS // vector;
//         WARPS = 32 if BLOCKS * STRIPS <= multiprocessors else 16; ROWS = WARPS * warp // LANES
// Launch: matmul_backward_bias<<<BLOCKS * STRIPS, WARPS * warp>>>
// After:  4
// Left:   where columns are few, so are the clusters -> rung 6.

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
