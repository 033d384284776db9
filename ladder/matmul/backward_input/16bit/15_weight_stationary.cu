// matmul backward_input, 16bit rung 15: weight-stationary tiles where output channels are few
// Before: in rung 14, each tile loads its columns of weight anew, although the tile below needs the
//         same ones. With 384 output channels, a tile takes 6 steps only. Then both warpgroups
//         store, and the tensor cores idle.
// Change: as matmul.forward 16bit rungs 16 and 17: a block keeps 128 or 192 columns of weight in
//         shared memory and goes down the rows of dout (weight-stationary). The warpgroups work on
//         alternate tiles of 64 rows (ping-pong), so that one multiplies while the other stores.
// Expect: per result, the bytes that are copied to shared memory drop to two thirds and less; and
//         stores take no extra time.
// Needs:  real in (float16, bfloat16); sm == 90; warp == 32; C % vector == 0; OC % vector == 0;
//         OC <= 384
// Define: TILE_ROWS = 64; HIGH = ceil_div(N, TILE_ROWS);
//         TILE_COLUMNS = matmul.tiles.kept_columns(HIGH, C, multiprocessors);
//         DEPTH = 64; WARPS = 8; STEPS = ceil_div(OC, DEPTH);
//         STAGES = 12 if TILE_COLUMNS == 128 else 6;
//         SHARED = (STAGES * TILE_ROWS + STEPS * TILE_COLUMNS + 2 * 128) * DEPTH * sizeof_real;
//         WIDE = ceil_div(C, TILE_COLUMNS); TILES = WIDE * HIGH;
//         BLOCKS = max(1, multiprocessors // WIDE) * WIDE
// Launch: matmul_backward_input<<<min(TILES, BLOCKS), (WARPS + 1) * warp, SHARED>>>
// Tiles:  dinp[64, 64]; dout[TILE_ROWS, DEPTH]; weight[DEPTH, 64]
// After:  16bit-14
// Left:   before its first product, a block waits for weight and dout.

#include "mma_real.cuh"
#include "wgmma_real.cuh"

constexpr int BLOCK = DEPTH * 64;  // elements of a tile of weight
constexpr int PATCH = 64 * 64;  // elements of results that one TMA store writes

// A position in the ring of stages. The parity that its barriers wait for flips with every round.
struct Stage {
    int index = 0, parity = 0;
    __device__ __forceinline__ void advance(int steps) {
        index += steps;
        parity ^= index / STAGES & 1;
        index %= STAGES;
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
    __shared__ Mbarrier full[STAGES], empty[STAGES], turns[2];  // turns: one per warpgroup
    real* a = shared->at;                      // (STAGES, TILE_ROWS, DEPTH)             of dout
    real* b = a + STAGES * TILE_ROWS * DEPTH;  // (STEPS, TILE_COLUMNS / 64, DEPTH, 64)  of weight
    real* patches = b + STEPS * TILE_COLUMNS * DEPTH;  // (2 warpgroups, 2, 64, 64)      of dinp
    int lane = lane_id();
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(&full[stage], 1);  // arrivals: the producer thread
            mbarrier_init(&empty[stage], 4);  // arrivals: the warps of one warpgroup
        }
        for (int i = 0; i < 2; i++) mbarrier_init(&turns[i], 4);  // arrivals: the other's warps
    }
    __syncthreads();  // the barriers are initialized before any thread waits on them

    Stage now;
    if (warp_id() == WARPS) {  // the producer warp
        if (lane > 0) return;
        for (int tile = blockIdx.x; tile < TILES; tile += gridDim.x) {
            int row = tile / WIDE * TILE_ROWS, column = tile % WIDE * TILE_COLUMNS;
            bool with_weight = tile == blockIdx.x;  // all tiles have the same columns
            for (int step = 0; step < STEPS; step++, now.advance(1)) {
                Mbarrier* done = &full[now.index];
                mbarrier_wait(&empty[now.index], now.parity ^ 1);  // the consumers have read it
                int rows = TILE_ROWS + (with_weight ? TILE_COLUMNS : 0);
                mbarrier_expect(done, rows * DEPTH * sizeof(real));
                tma_load_2d(a + now.index * TILE_ROWS * DEPTH, &dout_tiles, done, step * DEPTH,
                            row);
                for (int x = 0; with_weight && x < TILE_COLUMNS; x += 64) {
                    tma_load_2d(b + (step * TILE_COLUMNS + x) * DEPTH, &weight_tiles, done,
                                column + x, step * DEPTH);
                }
            }
        }
        return;
    }

    int group = warp_uniform(warp_id() / 4);  // the consumer warpgroup
    bool leader = threadIdx.x % 128 == 0;     // of the warpgroup
    int before = 1 - group;  // parity of the other warpgroup's turn that precedes this one's
    int turn = 0;  // the next patch; a tile may have an odd number of slices
    int own = warp_id() % 4 * 16 + lane / 4, t = lane % 4;  // the lane's row, and another 8 later
    now.advance(group * STEPS);
    for (int tile = blockIdx.x + group * gridDim.x; tile < TILES; tile += 2 * gridDim.x) {
        int row = tile / WIDE * TILE_ROWS, column = tile % WIDE * TILE_COLUMNS;
        mbarrier_wait(&turns[group], before);  // without it, `full` may be a round behind
        before ^= 1;
        float sums[TILE_COLUMNS / 2] = {};  // accumulators, laid out as mma.sync's D, 4 per matrix
        int last = 0;  // the previous stage
        for (int step = 0; step < STEPS; step++, now.advance(1)) {
            mbarrier_wait(&full[now.index], now.parity);  // the stage's copies have arrived
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < DEPTH; k += 16) {
                wgmma_m64k16<TILE_COLUMNS, false, BLOCK * sizeof(real)>(
                    sums, a + now.index * TILE_ROWS * DEPTH + k,
                    b + step * TILE_COLUMNS * DEPTH + k * 64);
            }
            wgmma_commit();
            wgmma_wait<1>();  // the products of the previous stage are done
            __syncwarp();     // in all lanes, before the stage is released
            if (step > 0 && lane == 0) mbarrier_arrive(&empty[last]);
            last = now.index;
        }
        if (lane == 0) mbarrier_arrive(&turns[1 - group]);  // its products are all issued
        wgmma_wait<0>(sums);
        __syncwarp();  // all lanes' products are done before the stage is released
        if (lane == 0) mbarrier_arrive(&empty[last]);
        now.advance(STEPS);  // skips the other warpgroup's stages

#pragma unroll
        for (int s = 0; s < TILE_COLUMNS / 64; s++) {  // 64 columns at a time
            real* patch = patches + (group * 2 + turn) * PATCH;
            turn ^= 1;
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
                tma_store_2d(&dinp_tiles, patch, column + s * 64, row);
                tma_store_commit();
            }
        }
    }
    if (leader) tma_store_wait<0>();  // the block stays until TMA has read its shared memory
}
