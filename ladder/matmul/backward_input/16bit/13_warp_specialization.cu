// matmul backward_input, 16bit rung 13: warp specialization with TMA, persistent kernel
// Before: in rung 12, all warps spend instructions on copies, and meet at a barrier in every step.
//         The tensor cores idle while a block loads its first tiles, and while it stores.
//         matmul.forward 16bit rung 13 has warp specialization.
// Change: the kernel of matmul.forward 16bit rung 13, with weight MN-major, as in rung 12. One
//         thread of a ninth warp, the producer, asks the tensor memory accelerator (TMA) for
//         copies, as far ahead as there are empty stages. Two warpgroups, the consumers, only
//         multiply and store. The kernel is persistent: each block goes from tile to tile of dinp,
//         so that copies go on while results leave.
// Expect: no instructions for copies, and no zeros to write past the end. The tensor cores wait
//         only while results go from registers to shared memory.
// Needs:  real in (float16, bfloat16); sm == 90; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE_ROWS = 128; TILE_COLUMNS = 256; DEPTH = 64; WARPS = 8; STAGES = 4;
//         SHARED = (STAGES * (TILE_ROWS + TILE_COLUMNS) + 2 * TILE_ROWS) * DEPTH * sizeof_real;
//         TILES = ceil_div(C, TILE_COLUMNS) * ceil_div(N, TILE_ROWS)
// Launch: matmul_backward_input<<<min(TILES, multiprocessors), (WARPS + 1) * warp, SHARED>>>
// Tiles:  dinp[64, 64]; dout[TILE_ROWS, DEPTH]; weight[DEPTH, 64]
// After:  matmul.forward 16bit-13
// Left:   4096 x 768 results are 96 tiles: 36 of 132 SMs have nothing to do -> rung 14.

#include "mma_real.cuh"
#include "wgmma_real.cuh"

constexpr int BLOCK = DEPTH * 64;  // elements of a tile of weight
constexpr int PATCH = 64 * 64;  // elements of results that one TMA store writes

// A position in the ring of stages. The parity that its barriers wait for flips with every round.
struct Stage {
    int index = 0, parity = 0;
    __device__ __forceinline__ void next() {
        if (++index == STAGES) index = 0, parity ^= 1;
    }
};

extern "C" __global__ void __launch_bounds__((WARPS + 1) * WARP_SIZE, 1) matmul_backward_input(
    real* __restrict__ dinp,          // (N, C)
    const real* __restrict__ dout,    // (N, OC)
    const real* __restrict__ weight,  // (OC, C)
    int N, int C, int OC,
    const __grid_constant__ TensorMap dinp_tiles, const __grid_constant__ TensorMap dout_tiles,
    const __grid_constant__ TensorMap weight_tiles) {
    extern __shared__ __align__(1024) Vec shared[];
    __shared__ Mbarrier full[STAGES], empty[STAGES];
    real* a = shared->at;                      // (STAGES, TILE_ROWS, DEPTH)              of dout
    real* b = a + STAGES * TILE_ROWS * DEPTH;  // (STAGES, TILE_COLUMNS / 64, DEPTH, 64)  of weight
    real* patches = b + STAGES * TILE_COLUMNS * DEPTH;  // (2 warpgroups, 2, 64, 64)      of dinp
    int wide = (C + TILE_COLUMNS - 1) / TILE_COLUMNS;  // tiles side by side
    int lane = lane_id();
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(&full[stage], 1);  // arrivals: the producer thread
            mbarrier_init(&empty[stage], WARPS);  // arrivals: the consumer warps
        }
    }
    __syncthreads();  // the barriers are initialized before any thread waits on them

    Stage now;
    if (warp_id() == WARPS) {  // the producer warp
        if (lane > 0) return;
        for (int tile = blockIdx.x; tile < TILES; tile += gridDim.x) {
            int row = tile / wide * TILE_ROWS, column = tile % wide * TILE_COLUMNS;
            for (int start = 0; start < OC; start += DEPTH, now.next()) {
                Mbarrier* done = &full[now.index];
                mbarrier_wait(&empty[now.index], now.parity ^ 1);  // the consumers have read it
                mbarrier_expect(done, (TILE_ROWS + TILE_COLUMNS) * DEPTH * sizeof(real));
                tma_load_2d(a + now.index * TILE_ROWS * DEPTH, &dout_tiles, done, start, row);
                for (int x = 0; x < TILE_COLUMNS; x += 64) {
                    tma_load_2d(b + now.index * TILE_COLUMNS * DEPTH + x * DEPTH, &weight_tiles,
                                done, column + x, start);
                }
            }
        }
        return;
    }

    int group = warp_id() / 4, y = group * 64;  // the consumer warpgroup; its first row
    bool leader = threadIdx.x % 128 == 0;       // of the warpgroup
    int own = warp_id() % 4 * 16 + lane / 4, t = lane % 4;  // the lane's row, and another 8 later
    for (int tile = blockIdx.x; tile < TILES; tile += gridDim.x) {
        int row = tile / wide * TILE_ROWS, column = tile % wide * TILE_COLUMNS;
        float sums[TILE_COLUMNS / 2] = {};  // accumulators, laid out as mma.sync's D, 4 per matrix
        int last = 0;  // the previous stage
        for (int start = 0; start < OC; start += DEPTH, now.next()) {
            mbarrier_wait(&full[now.index], now.parity);  // the stage's copies have arrived
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < DEPTH; k += 16) {
                wgmma_m64k16<TILE_COLUMNS, false, BLOCK * sizeof(real)>(
                    sums, a + (now.index * TILE_ROWS + y) * DEPTH + k,
                    b + now.index * TILE_COLUMNS * DEPTH + k * 64);
            }
            wgmma_commit();
            wgmma_wait<1>();  // the products of the previous stage are done
            __syncwarp();     // in all lanes, before the stage is released
            if (start > 0 && lane == 0) mbarrier_arrive(&empty[last]);
            last = now.index;
        }
        wgmma_wait<0>(sums);
        __syncwarp();  // all lanes' products are done before the stage is released
        if (lane == 0) mbarrier_arrive(&empty[last]);

#pragma unroll
        for (int s = 0; s < TILE_COLUMNS / 64; s++) {  // 64 columns at a time
            real* patch = patches + (group * 2 + s % 2) * PATCH;
            if (leader) tma_store_wait<1>();  // the previous store from this patch has read it
            named_barrier(1 + group, 128);  // ... before the warpgroup overwrites it
#pragma unroll
            for (int p = 0; p < 8; p++) {
                int j = s * 8 + p;
                unsigned* to = reinterpret_cast<unsigned*>(
                    patch + own * 64 + (p ^ own % 8) * VECTOR);  // TMA's swizzle
                to[t] = pack(sums[4 * j], sums[4 * j + 1]);
                to[8 * 32 + t] = pack(sums[4 * j + 2], sums[4 * j + 3]);
            }
            tma_store_fence();  // makes the patch visible to TMA (async proxy)
            named_barrier(1 + group, 128);  // all of it is written before TMA reads it
            if (leader) {
                tma_store_2d(&dinp_tiles, patch, column + s * 64, row + y);
                tma_store_commit();
            }
        }
    }
    if (leader) tma_store_wait<0>();  // the block stays until TMA has read its shared memory
}
