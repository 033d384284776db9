// matmul_crossentropy backward_input, 16bit rung 2: a factor for each row in the epilogue
// Before: in rung 1, each multiply-add needs two loads. matmul.backward_input 16bit rung 14 copies
//         dlogits and weight by TMA, and multiplies with wgmma.
// Change: that product of exps, which are dlogits but for one factor for each row. The epilogue
//         multiplies the accumulators by it.
// Expect: the time of rung 14's product: two loads and 128 multiplications a lane, for a tile of
//         786 steps of 64 products each.
// Needs:  real == bfloat16; sm == 90; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE_ROWS = 128; HIGH = ceil_div(N, TILE_ROWS);
//         TILE_COLUMNS = matmul.tiles.tile_columns(HIGH, C, multiprocessors, 256, 192);
//         DEPTH = 64; WARPS = 8; STAGES = 4;
//         SHARED = (STAGES * (TILE_ROWS + TILE_COLUMNS) + 2 * TILE_ROWS) * DEPTH * sizeof_real;
//         TILES = ceil_div(C, TILE_COLUMNS) * HIGH
// Launch: matmul_crossentropy_backward_input<<<min(TILES, multiprocessors), (WARPS + 1) * warp,
//         SHARED>>>
// Tiles:  dinp[64, 64]; exps[TILE_ROWS, DEPTH]; weight[DEPTH, 64]
// After:  matmul.backward_input 16bit-14
// Left:   the product is at the limit of the tensor cores, whose clock the power limit sets.

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

extern "C" __global__ void
__launch_bounds__((WARPS + 1) * WARP_SIZE, 1) matmul_crossentropy_backward_input(
    const float* __restrict__ factors,  // (N)
    int N, int C, int OC,
    const __grid_constant__ TensorMap dinp_tiles, const __grid_constant__ TensorMap exps_tiles,
    const __grid_constant__ TensorMap weight_tiles) {
    extern __shared__ __align__(1024) Vec shared[];
    __shared__ Mbarrier full[STAGES], empty[STAGES];
    real* a = shared->at;                      // (STAGES, TILE_ROWS, DEPTH)              of exps
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
                tma_load_2d(a + now.index * TILE_ROWS * DEPTH, &exps_tiles, done, start, row);
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
    int turn = 0;  // the next patch; a tile may have an odd number of slices
    int own = warp_id() % 4 * 16 + lane / 4, t = lane % 4;  // the lane's row, and another 8 later
    for (int tile = blockIdx.x; tile < TILES; tile += gridDim.x) {
        int row = tile / wide * TILE_ROWS, column = tile % wide * TILE_COLUMNS;
        float factor[2];  // of the lane's rows
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int n = row + y + own + 8 * r;
            factor[r] = n < N ? factors[n] : 0.0f;
        }
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
            real* patch = patches + (group * 2 + turn) * PATCH;
            turn ^= 1;
            if (leader) tma_store_wait<1>();  // the previous store from this patch has read it
            named_barrier(1 + group, 128);  // ... before the warpgroup overwrites it
#pragma unroll
            for (int p = 0; p < 8; p++) {
                int j = s * 8 + p;
                unsigned* to = reinterpret_cast<unsigned*>(
                    patch + own * 64 + (p ^ own % 8) * VECTOR);  // TMA's swizzle
                to[t] = pack(sums[4 * j] * factor[0], sums[4 * j + 1] * factor[0]);
                to[8 * 32 + t] = pack(sums[4 * j + 2] * factor[1], sums[4 * j + 3] * factor[1]);
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
