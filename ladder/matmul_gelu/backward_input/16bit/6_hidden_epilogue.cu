// matmul_gelu backward_input, 16bit rung 6: epilogue hidden behind the other's products
// Before: the tile of rung 5 needs 8,704 clocks of shared memory for 6,144 of products. A lane
//         loads eight pairs of pre, then stores eight pairs of results, and the next loads must
//         wait, since the compiler cannot tell the places apart. The four warps of a warpgroup wait
//         for each other before TMA stores the first results.
// Change: the epilogue of matmul_gelu.forward 16bit rung 11, and its tiles of 128 x 192. A warp has
//         four patches of 16 x 64. It asks for its own rows of pre, reads them by ldmatrix, writes
//         results to the same places by stmatrix, and stores them: no barrier of the warpgroup is
//         left. pre and results are not used again here, so they leave L2 first.
// Expect: the special function units need 3,072 clocks for the slopes of a tile, a third of the
//         9,216 clocks of products that hide them. Shared memory is the limit, with 11,520 clocks:
//         for each product it does about an eighth less than in rung 5.
// Needs:  real in (float16, bfloat16); sm == 90; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE_ROWS = 128; TILE_COLUMNS = 192; DEPTH = 64; WARPS = 8; STAGES = 4; SLOTS = 4;
//         CLUSTERS = multiprocessors // 2; IN_CLUSTER = 1;
//         SHARED = (STAGES * (TILE_ROWS + TILE_COLUMNS) + SLOTS * 128) * DEPTH * sizeof_real;
//         TILES = ceil_div(C, TILE_COLUMNS) * ceil_div(N, 2 * TILE_ROWS)
// Launch: matmul_gelu_backward_input<<<2 * min(TILES, CLUSTERS), (WARPS + 4) * warp,
//         SHARED>>>
// Tiles:  dinp[16, 64]; dout[TILE_ROWS, DEPTH]; weight[DEPTH // 2, 64]; pre[16, 64]
// After:  16bit-5
// Rewrite: the epilogue is that of matmul_gelu.forward 16bit rung 11, warp by warp.
// Left:   there is room for two thirds of the rows of pre that a warp needs: the rest is copied
//         during the epilogue, which waits for it.

#include "fast_math.cuh"
#include "mma_real.cuh"
#include "wgmma_real.cuh"

constexpr int BLOCK = DEPTH * 64;  // elements of a tile of weight
constexpr int PATCH = 16 * 64;     // elements of pre or of results that one TMA copy moves
constexpr int ACROSS = TILE_COLUMNS / 64, SLICES = 2 * ACROSS;  // patches of a warp in a tile

constexpr float SCALE = 0.7978845608f;  // sqrt(2 / pi)
constexpr float CUBIC = 0.044715f;
constexpr float LINEAR = -2.0f * LOG2_E * SCALE;  // exp(-2u) = 2^(LINEAR * (x + CUBIC * x^3))

// s = (1 + tanh(u)) / 2 is the sigmoid of 2u, and the slope of g = x s is s + (g - g s) 2 du/dx.
// The last factor, 2 SCALE (1 + 3 CUBIC x^2), is linear in p.
__device__ __forceinline__ float gelu_slope(float x, float factor) {
    float p = LINEAR + factor * x * x;
    float s = fast_reciprocal(1.0f + fast_exp2(x * p)), g = x * s;
    return s + (g - g * s) * (-3.0f * LN_2 * p - 4.0f * SCALE);
}

// A position in the ring of stages. The parity that its barriers wait for flips with every round.
struct Stage {
    int index = 0, parity = 0;
    __device__ __forceinline__ void advance(int steps) {
        index += steps;
        parity ^= index / STAGES & 1;
        index %= STAGES;
    }
};

extern "C" __global__ void __cluster_dims__(2, 1, 1)
__launch_bounds__((WARPS + 4) * WARP_SIZE, 1) matmul_gelu_backward_input(
    real* __restrict__ dinp,          // (N, C)
    const real* __restrict__ dout,    // (N, OC)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ pre,     // (N, C)
    int N, int C, int OC,
    const __grid_constant__ TensorMap dinp_tiles, const __grid_constant__ TensorMap dout_tiles,
    const __grid_constant__ TensorMap weight_tiles, const __grid_constant__ TensorMap pre_tiles) {
    extern __shared__ __align__(1024) Vec shared[];
    __shared__ Mbarrier full[STAGES], empty[STAGES], turns[2];  // turns: one per warpgroup
    __shared__ Mbarrier loaded[WARPS][SLOTS];                   // one per patch
    __shared__ volatile float cubic;                            // LINEAR * CUBIC
    real* a = shared->at;                      // (STAGES, TILE_ROWS, DEPTH)              of dout
    real* b = a + STAGES * TILE_ROWS * DEPTH;  // (STAGES, TILE_COLUMNS / 64, DEPTH, 64)  of weight
    real* patches = b + STAGES * TILE_COLUMNS * DEPTH;  // (WARPS, SLOTS, 16, 64)
                                                        //  of pre, then of dinp
    int wide = (C + TILE_COLUMNS - 1) / TILE_COLUMNS, rank = cluster_rank();
    int lane = lane_id(), steps = (OC + DEPTH - 1) / DEPTH;
    if (threadIdx.x == 0) {
        cubic = LINEAR * CUBIC;
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(&full[stage], 1);  // arrivals: the producer thread
            mbarrier_init(&empty[stage], WARPS);  // arrivals: one warpgroup in each block
        }
        for (int i = 0; i < WARPS * SLOTS; i++) mbarrier_init(&loaded[0][i], 1);  // lane 0
        for (int i = 0; i < 2; i++) mbarrier_init(&turns[i], 4);  // arrivals: the other's warps
    }
    cluster_barrier();  // both blocks' barriers are initialized before any thread uses them

    Stage now;
    if (warp_id() >= WARPS) {  // the producer warpgroup, of which one thread works
        fewer_registers<24>();
        bool producer = threadIdx.x == WARPS * WARP_SIZE;
        for (int pair = blockIdx.x / 2; producer && pair < TILES; pair += gridDim.x / 2) {
            int row = (pair / wide * 2 + rank) * TILE_ROWS, column = pair % wide * TILE_COLUMNS;
#pragma unroll 1
            for (int start = 0; start < OC; start += DEPTH, now.advance(1)) {
                Mbarrier* done = &full[now.index];
                mbarrier_wait(&empty[now.index], now.parity ^ 1);  // the consumers have read it
                mbarrier_expect(done, (TILE_ROWS + TILE_COLUMNS) * DEPTH * sizeof(real));
                tma_load_2d(a + now.index * TILE_ROWS * DEPTH, &dout_tiles, done, start, row);
                real* to = b + now.index * TILE_COLUMNS * DEPTH + rank * BLOCK / 2;
                for (int x = 0; x < TILE_COLUMNS; x += 64) {  // half of the rows of each tile
                    tma_load_2d_multicast(to + x * DEPTH, &weight_tiles, done, column + x,
                                          start + rank * DEPTH / 2, 3);
                }
            }
        }
        __syncwarp();  // all lanes must reach cluster_barrier together
        cluster_barrier();  // neither block ends while the other still copies to its memory
        return;
    }

    more_registers<240>();
    int warp = warp_uniform(warp_id()), group = warp / 4;  // the consumer warpgroup
    real *own = patches + warp * SLOTS * PATCH, *rows[4];  // rows: the lane's, in 4 x 16 columns
    for (int p = 0; p < 4; p++) {
        int piece = (2 * p + lane / 16) ^ lane % 8;  // TMA's swizzle
        rows[p] = own + lane % 16 * 64 + piece * VECTOR;
    }
    int stride = gridDim.x / 2;
    now.advance(group * steps);
    int before = 1 - group;  // parity of the other warpgroup's turn that precedes this one's
    int round = 0;           // parity of the number of tiles
    for (int pair = blockIdx.x / 2 + group * stride; pair < TILES;
         pair += 2 * stride, round ^= 1) {
        int row = (pair / wide * 2 + rank) * TILE_ROWS + warp % 4 * 16;
        int column = pair % wide * TILE_COLUMNS;
        auto copy_pre = [&](int s) {  // one lane calls it
            Mbarrier* done = &loaded[warp][s % SLOTS];
            mbarrier_expect(done, PATCH * sizeof(real));
            tma_load_2d_evict_first(own + s % SLOTS * PATCH, &pre_tiles, done,
                                    column + s % ACROSS * 64, row + s / ACROSS * 64);
        };
        if (lane == 0) {  // pre arrives while the tile's products are computed
            tma_store_wait<0>();  // the stores of the previous tile have read its patches
#pragma unroll
            for (int s = 0; s < SLOTS; s++) copy_pre(s);
#pragma unroll
            for (int s = SLOTS; s < SLICES; s++) {  // for these there is no patch yet
                tma_prefetch_2d(&pre_tiles, column + s % ACROSS * 64, row + s / ACROSS * 64);
            }
        }
        __syncwarp();  // wgmma needs all lanes together
        float sums[2][TILE_COLUMNS / 2] = {};  // of rows 0 to 63 and 64 to 127
        mbarrier_wait(&turns[group], before);  // without it, `full` may be a round behind
        before ^= 1;
        int last = 0;
        for (int step = 0; step < steps; step++, now.advance(1)) {
            mbarrier_wait(&full[now.index], now.parity);  // the stage's copies have arrived
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < DEPTH; k += 16) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    wgmma_m64k16<TILE_COLUMNS, false, BLOCK * sizeof(real)>(
                        sums[half], a + (now.index * TILE_ROWS + half * 64) * DEPTH + k,
                        b + now.index * TILE_COLUMNS * DEPTH + k * 64);
                }
            }
            wgmma_commit();
            wgmma_wait<1>();  // the products of the previous stage are done
            __syncwarp();     // in all lanes, before the stage is released
            if (step > 0 && lane < 2) mbarrier_arrive_at(&empty[last], lane);
            last = now.index;
        }
        if (lane == 0) mbarrier_arrive(&turns[1 - group]);  // its products are all issued
        wgmma_wait<0>(sums[0], sums[1]);
        __syncwarp();  // all lanes' products are done before the stage is released
        if (lane < 2) mbarrier_arrive_at(&empty[last], lane);
        now.advance(steps);  // skips the other warpgroup's stages

#pragma unroll
        for (int s = 0; s < SLICES; s++) {  // the warp's 16 of 64 rows, 64 columns
            int half = s / ACROSS, x = s % ACROSS * 64, patch = s % SLOTS * PATCH;
            bool again = s % SLOTS < SLICES - SLOTS;  // this patch takes two slices of each tile
            mbarrier_wait(&loaded[warp][s % SLOTS], again ? s / SLOTS : round);  // pre has arrived
            float factor = cubic;  // loaded here, or the compiler starts later slopes early
            unsigned pres[4][4];
#pragma unroll
            for (int p = 0; p < 4; p++) ldmatrix_x4(pres[p], rows[p] + patch);
#pragma unroll
            for (int p = 0; p < 4; p++) {  // 16 columns at a time
                unsigned outs[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {  // rows 0 to 7, 8 to 15 of 8 columns; then the next 8
                    const float* two = &sums[half][x / 2 + 8 * p + 2 * i];
                    outs[i] = pack(two[0] * gelu_slope(low_of(pres[p][i]), factor),
                                   two[1] * gelu_slope(high_of(pres[p][i]), factor));
                }
                stmatrix_x4(rows[p] + patch, outs);
            }
            tma_store_fence();  // makes the patch visible to TMA (async proxy)
            __syncwarp();  // all lanes have written before TMA reads
            if (lane == 0) {
                tma_store_2d_evict_first(&dinp_tiles, own + patch, column + x, row + half * 64);
                tma_store_commit();
                if (s > 0 && s - 1 + SLOTS < SLICES) {
                    tma_store_wait<1>();  // the store before has read its patch
                    copy_pre(s - 1 + SLOTS);
                }
            }
            __syncwarp();  // ldmatrix and wgmma need all lanes together
        }
    }
    if (lane == 0) tma_store_wait<0>();  // the block stays until TMA has read its shared memory
    __syncwarp();  // all lanes must reach cluster_barrier together
    cluster_barrier();  // neither block ends while the other still arrives at its barriers
}
