// matmul_relu backward_input, 16bit rung 4: weight-stationary tiles, out loaded a tile ahead
// Before: rung 2 multiplies in float32, and loads two factors from shared memory for each
//         multiply-add. matmul.backward_input 16bit rung 15 has ping-pong consumer warpgroups with
//         wgmma. A block keeps 128 columns of weight in shared memory and goes down the rows of
//         dout (weight-stationary).
// Change: the product of matmul.backward_input 16bit rung 15, where out is positive. TMA loads
//         tiles of out. A lane replaces each element of out by the result at the same place: the
//         sum where out is positive, else 0. Tiles have 64 rows, which leaves room for two places
//         per warpgroup: the next tile's out is under way while this one's is replaced.
// Expect: 0.57 times as many bytes copied to shared memory for a result as for tiles of 128 x 128,
//         which load both factors. N * (OC + 2 * C) elements through memory, and copies of out that
//         nobody waits for: closer to the roof. 12 columns of tiles with 11 blocks each use all of
//         132 SMs.
// Needs:  real in (float16, bfloat16); sm == 90; warp == 32; C % vector == 0; OC % vector == 0;
//         OC <= 384
// Define: DEPTH = 64; WARPS = 8; STEPS = ceil_div(OC, DEPTH); TILE_ROWS = 64; TILE_COLUMNS = 128;
//         STAGES = 8; HIGH = ceil_div(N, TILE_ROWS); WIDE = ceil_div(C, TILE_COLUMNS);
//         TILES = WIDE * HIGH; BLOCKS = max(1, multiprocessors // WIDE) * WIDE;
//         SHARED = (STAGES * TILE_ROWS + STEPS * TILE_COLUMNS + 8 * 64) * DEPTH * sizeof_real
// Launch: matmul_relu_backward_input<<<min(TILES, BLOCKS), (WARPS + 1) * warp, SHARED>>>
// Tiles:  dinp[64, 64]; dout[TILE_ROWS, DEPTH]; weight[DEPTH, 64]; out[64, 64]
// After:  matmul.backward_input 16bit-15
// Replaces: 16bit-3 ping_pong
// Left:   the copies and stores of one tile at a time for each warpgroup; and columns of weight
//         that do not fit into shared memory, where OC is larger.

#include "mma_real.cuh"
#include "wgmma_real.cuh"

constexpr int BLOCK = DEPTH * 64;  // elements of a tile of weight
constexpr int PATCH = 64 * 64;     // elements of results that one TMA store writes
constexpr int AHEAD = 4;           // matrices of out that are loaded before the first is replaced

struct alignas(4) Pair { real low, high; };

// Replaces what the lane has of out in AHEAD matrices of 8 columns by the results: sums where out
// is positive, else 0. They begin at matrix `first` of a patch. All loads come before the first
// store, since the compiler cannot know that a store does not change what is loaded next.
__device__ __forceinline__ void replace_out(const float* sums, real* patch, int first) {
    int lane = lane_id(), own = warp_id() % 4 * 16 + lane / 4, t = lane % 4;
    Pair *places[2 * AHEAD], xs[2 * AHEAD];  // `own`: the lane's row; it has another one 8 later
#pragma unroll
    for (int i = 0; i < 2 * AHEAD; i++) {
        int piece = (first + i / 2) ^ own % 8;  // TMA's swizzle
        real* at = patch + (own + i % 2 * 8) * 64 + piece * VECTOR + 2 * t;
        places[i] = reinterpret_cast<Pair*>(at);
        xs[i] = *places[i];
    }
#pragma unroll
    for (int i = 0; i < 2 * AHEAD; i++) {
        Pair x = xs[i];
        *reinterpret_cast<unsigned*>(places[i]) =
            pack(to_float(x.low) > 0.0f ? sums[2 * i] : 0.0f,
                 to_float(x.high) > 0.0f ? sums[2 * i + 1] : 0.0f);
    }
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

extern "C" __global__ void __launch_bounds__((WARPS + 1) * WARP_SIZE, 1) matmul_relu_backward_input(
    real* __restrict__ dinp,          // (N, C)
    const real* __restrict__ dout,    // (N, OC)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ out,     // (N, C)
    int N, int C, int OC,
    const __grid_constant__ TensorMap dinp_tiles, const __grid_constant__ TensorMap dout_tiles,
    const __grid_constant__ TensorMap weight_tiles, const __grid_constant__ TensorMap out_tiles) {
    extern __shared__ __align__(1024) Vec shared[];
    __shared__ Mbarrier full[STAGES], empty[STAGES], turns[2];  // turns: one per warpgroup
    __shared__ Mbarrier loaded[2][2];                           // one per warpgroup and place
    real* a = shared->at;                      // (STAGES, TILE_ROWS, DEPTH)            of dout
    real* b = a + STAGES * TILE_ROWS * DEPTH;  // (STEPS, TILE_COLUMNS / 64, DEPTH, 64)  of weight
    real* patches = b + STEPS * TILE_COLUMNS * DEPTH;  // (2 warpgroups, 2 places, 2, 64, 64)
    int lane = lane_id();
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(&full[stage], 1);  // arrivals: the producer thread
            mbarrier_init(&empty[stage], 4);  // arrivals: the warps that read it
        }
        for (int i = 0; i < 2; i++) {
            mbarrier_init(&turns[i], 4);  // arrivals: the other warpgroup's warps
            mbarrier_init(&loaded[i][0], 1);  // arrivals: the warpgroup's leader
            mbarrier_init(&loaded[i][1], 1);
        }
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
    patches += group * 4 * PATCH;
    auto load_out = [&](int tile, int place) {  // two patches, side by side
        Mbarrier* done = &loaded[group][place];
        mbarrier_expect(done, 2 * PATCH * sizeof(real));
        for (int s = 0; s < 2; s++) {
            tma_load_2d(patches + (place * 2 + s) * PATCH, &out_tiles, done,
                        tile % WIDE * TILE_COLUMNS + s * 64, tile / WIDE * TILE_ROWS);
        }
    };
    int place = 0, round = 0;  // of this tile's out; the parity that `loaded` waits for
    int first = blockIdx.x + group * gridDim.x;
    if (leader && first < TILES) load_out(first, place);
    __syncwarp();
    now.advance(group * STEPS);
    for (int tile = first; tile < TILES; tile += 2 * gridDim.x) {
        int row = tile / WIDE * TILE_ROWS, column = tile % WIDE * TILE_COLUMNS;
        mbarrier_wait(&turns[group], before);  // else `full` may be a round behind
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
        int next = tile + 2 * gridDim.x;
        if (leader && next < TILES) {
            tma_store_wait<0>();  // the previous tile's results have left the other place
            load_out(next, place ^ 1);
        }
        __syncwarp();
        wgmma_wait<0>(sums);
        __syncwarp();  // all lanes' products are done before the stage is released
        if (lane == 0) mbarrier_arrive(&empty[last]);
        now.advance(STEPS);  // skips the other warpgroup's stages

        real* own = patches + place * 2 * PATCH;
        mbarrier_wait(&loaded[group][place], round);  // out has arrived
#pragma unroll
        for (int j = 0; j < TILE_COLUMNS / 8; j += AHEAD) {
            replace_out(&sums[4 * j], own + j / 8 * PATCH, j % 8);
        }
        tma_store_fence();  // makes the patches visible to TMA (async proxy)
        named_barrier(1 + group, 128);  // all of them are written before TMA reads them
        if (leader) {
            for (int s = 0; s < 2; s++) {
                tma_store_2d(&dinp_tiles, own + s * PATCH, column + s * 64, row);
            }
            tma_store_commit();
        }
        round ^= place;  // flips when both places have had their turn
        place ^= 1;
    }
    if (leader) tma_store_wait<0>();  // the block stays until TMA has read its shared memory
}
