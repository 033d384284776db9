// matmul_gelu backward_input, 16bit rung 5: ping-pong consumer warpgroups on alternate tiles
// Before: in rung 3, the tensor cores idle while a block loads its first tiles, and while it loads
//         pre, computes slopes, and stores. In matmul.forward 16bit rung 16, two consumer
//         warpgroups multiply with wgmma and work on alternate tiles of 128 x 128: ping-pong
//         (CUTLASS's name).
// Change: ping-pong, as in matmul.forward 16bit rung 16. While one warpgroup computes slopes and
//         stores, the other multiplies. TMA also loads the tile of pre, while the tile's products
//         are computed, to the place in shared memory from which TMA stores the results. A lane
//         replaces an element of pre by the result at the same place. Two blocks of a cluster share
//         tiles of weight.
// Expect: the slopes take no extra time, since they are shorter than the products.
// Needs:  real in (float16, bfloat16); sm == 90; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE_ROWS = 128; TILE_COLUMNS = 128; DEPTH = 64; WARPS = 8; STAGES = 5;
//         AHEAD = 4; CLUSTERS = multiprocessors // 2; IN_CLUSTER = 1;
//         SHARED = (STAGES * (TILE_ROWS + TILE_COLUMNS) * DEPTH + 2 * TILE_ROWS * TILE_COLUMNS)
//                  * sizeof_real;
//         TILES = ceil_div(C, TILE_COLUMNS) * ceil_div(N, 2 * TILE_ROWS)
// Launch: matmul_gelu_backward_input<<<2 * min(TILES, CLUSTERS), (WARPS + 1) * warp,
//         SHARED>>>
// Tiles:  dinp[TILE_ROWS, 64]; dout[TILE_ROWS, DEPTH]; weight[DEPTH, 64]; pre[TILE_ROWS, 64]
// After:  matmul.forward 16bit-16
// Rewrite: weight is MN-major, and the epilogue is another one: it has a tile to load.
// Replaces: 16bit-4 warp_specialization
// Left:   a tile of 128 x 128 reads more from shared memory for a product than one of 128 x 192
//         -> rung 6.

#include "fast_math.cuh"
#include "mma_real.cuh"
#include "wgmma_real.cuh"

constexpr int BLOCK = DEPTH * 64;  // elements of a tile of weight
constexpr int PATCH = TILE_ROWS * 64;  // elements of pre or of results that one TMA copy moves

struct alignas(4) Pair { real low, high; };

constexpr float SCALE = 0.7978845608f;  // sqrt(2 / pi)
constexpr float CUBIC = 0.044715f;
constexpr float LINEAR = -2.0f * LOG2_E * SCALE;  // exp(-2u) = 2^(LINEAR * (x + CUBIC * x^3))

// s = (1 + tanh(u)) / 2 is the sigmoid of 2u, and (1 - tanh(u)^2) / 2 = 2 s (1 - s). Near s = 1 the
// difference 1 - s loses digits (cancellation), too few to show in 16 bits.
__device__ __forceinline__ float gelu_slope(float x) {
    float square = x * x;
    float s = __fdividef(1.0f, 1.0f + fast_exp2(x * (LINEAR + LINEAR * CUBIC * square)));
    float steepness = x * (2.0f * SCALE + 6.0f * SCALE * CUBIC * square);  // 2x du/dx
    return s * (1.0f + steepness * (1.0f - s));
}

// Replaces what the lane has of pre in AHEAD matrices of 8 columns by the results: sums times
// slopes. They begin at matrix `first` of a patch. All loads come before the first store, since the
// compiler cannot know that a store does not change what is loaded next.
__device__ __forceinline__ void replace_pre(const float* sums, real* patch, int first) {
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
            pack(sums[2 * i] * gelu_slope(to_float(x.low)),
                 sums[2 * i + 1] * gelu_slope(to_float(x.high)));
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

extern "C" __global__ void __cluster_dims__(2, 1, 1)
__launch_bounds__((WARPS + 1) * WARP_SIZE, 1) matmul_gelu_backward_input(
    real* __restrict__ dinp,          // (N, C)
    const real* __restrict__ dout,    // (N, OC)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ pre,     // (N, C)
    int N, int C, int OC,
    const __grid_constant__ TensorMap dinp_tiles, const __grid_constant__ TensorMap dout_tiles,
    const __grid_constant__ TensorMap weight_tiles, const __grid_constant__ TensorMap pre_tiles) {
    extern __shared__ __align__(1024) Vec shared[];
    __shared__ Mbarrier full[STAGES], empty[STAGES], loaded[2];  // loaded: one per warpgroup
    __shared__ Mbarrier turns[2];                                // also one per warpgroup
    real* a = shared->at;                      // (STAGES, TILE_ROWS, DEPTH)              of dout
    real* b = a + STAGES * TILE_ROWS * DEPTH;  // (STAGES, TILE_COLUMNS / 64, DEPTH, 64)  of weight
    real* tiles = b + STAGES * TILE_COLUMNS * DEPTH;  // (2 warpgroups, TILE_COLUMNS / 64, 128, 64)
                                                      //  of pre, then of dinp
    int wide = (C + TILE_COLUMNS - 1) / TILE_COLUMNS, rank = cluster_rank();
    int lane = lane_id(), steps = (OC + DEPTH - 1) / DEPTH;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(&full[stage], 1);  // arrivals: the producer thread
            mbarrier_init(&empty[stage], 2 * 4);  // arrivals: one warpgroup in each block
        }
        for (int i = 0; i < 2; i++) mbarrier_init(&loaded[i], 1);  // arrivals: the leader
        for (int i = 0; i < 2; i++) mbarrier_init(&turns[i], 4);  // arrivals: the other's warps
    }
    cluster_barrier();  // both blocks' barriers are initialized before any thread uses them

    Stage now;
    if (warp_id() == WARPS) {  // the producer warp
        for (int pair = blockIdx.x / 2; lane == 0 && pair < TILES; pair += gridDim.x / 2) {
            int row = (pair / wide * 2 + rank) * TILE_ROWS, column = pair % wide * TILE_COLUMNS;
            for (int start = 0; start < OC; start += DEPTH, now.advance(1)) {
                Mbarrier* done = &full[now.index];
                mbarrier_wait(&empty[now.index], now.parity ^ 1);  // the consumers have read it
                mbarrier_expect(done, (TILE_ROWS + TILE_COLUMNS) * DEPTH * sizeof(real));
                tma_load_2d(a + now.index * TILE_ROWS * DEPTH, &dout_tiles, done, start, row);
                tma_load_2d_multicast(b + (now.index * 2 + rank) * BLOCK, &weight_tiles, done,
                                      column + rank * 64, start, 3);
            }
        }
        __syncwarp();  // all lanes must reach cluster_barrier together
        cluster_barrier();  // neither block ends while the other still copies to its memory
        return;
    }

    int group = warp_uniform(warp_id() / 4);  // the consumer warpgroup
    bool leader = threadIdx.x % 128 == 0;     // of the warpgroup
    real* patches = tiles + group * TILE_ROWS * TILE_COLUMNS;
    int stride = gridDim.x / 2;
    now.advance(group * steps);
    int before = 1 - group;  // parity of the other warpgroup's turn that precedes this one's
    int round = 0;  // parity of the tile's copies of pre
    for (int pair = blockIdx.x / 2 + group * stride; pair < TILES;
         pair += 2 * stride, round ^= 1) {
        int row = (pair / wide * 2 + rank) * TILE_ROWS, column = pair % wide * TILE_COLUMNS;
        if (leader) {  // pre arrives while the tile's products are computed
            tma_store_wait<0>();  // the stores of the previous tile have read its patches
            mbarrier_expect(&loaded[group], TILE_COLUMNS / 64 * PATCH * sizeof(real));
            for (int x = 0; x < TILE_COLUMNS; x += 64) {
                tma_load_2d(patches + x / 64 * PATCH, &pre_tiles, &loaded[group], column + x, row);
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

        mbarrier_wait(&loaded[group], round);  // pre has arrived
#pragma unroll
        for (int i = 0; i < TILE_COLUMNS / 4; i += AHEAD) {
            int half = i / (TILE_COLUMNS / 8), j = i % (TILE_COLUMNS / 8);  // 8 columns at a time
            replace_pre(&sums[half][4 * j], patches + j / 8 * PATCH + half * 64 * 64, j % 8);
        }
        tma_store_fence();  // makes the patches visible to TMA (async proxy)
        named_barrier(1 + group, 128);  // all of them are written before TMA reads them
        if (leader) {
            for (int x = 0; x < TILE_COLUMNS; x += 64) {
                tma_store_2d(&dinp_tiles, patches + x / 64 * PATCH, column + x, row);
            }
            tma_store_commit();
        }
    }
    if (leader) tma_store_wait<0>();  // the block stays until TMA has read its shared memory
    __syncwarp();  // all lanes must reach cluster_barrier together
    cluster_barrier();  // neither block ends while the other still arrives at its barriers
}
