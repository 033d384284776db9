// matmul_gelu backward_input, 16bit rung 4: warp specialization, pre by TMA
// Before: in rung 3, the tensor cores idle while a block loads its first tiles, and while it loads
//         pre, computes slopes, and stores.
// Change: the product of matmul.backward_input 16bit rung 13: a producer warp, two consumer
//         warpgroups, wgmma, and a persistent kernel. TMA also loads the tile of pre, while the
//         tile's products are computed, to the place in shared memory from which TMA stores the
//         results. A lane replaces an element of pre by the result at the same place.
// Expect: nothing waits for pre. Both warpgroups still compute slopes at the same time. The tile of
//         pre takes 64 KB of shared memory, so there is a stage less than in the product.
// Needs:  real in (float16, bfloat16); sm == 90; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE_ROWS = 128; TILE_COLUMNS = 256; DEPTH = 64; WARPS = 8; STAGES = 3; AHEAD = 4;
//         SHARED = (STAGES * (TILE_ROWS + TILE_COLUMNS) * DEPTH + TILE_ROWS * TILE_COLUMNS)
//                  * sizeof_real;
//         TILES = ceil_div(C, TILE_COLUMNS) * ceil_div(N, TILE_ROWS)
// Launch: matmul_gelu_backward_input<<<min(TILES, multiprocessors), (WARPS + 1) * warp, SHARED>>>
// Tiles:  dinp[64, 64]; dout[TILE_ROWS, DEPTH]; weight[DEPTH, 64]; pre[64, 64]
// After:  matmul.backward_input 16bit-13
// Left:   both warpgroups compute slopes at the same time. If one multiplied meanwhile, the tensor
//         cores would never wait -> rung 5.

#include "fast_math.cuh"
#include "mma_real.cuh"
#include "wgmma_real.cuh"

constexpr int BLOCK = DEPTH * 64;  // elements of a tile of weight
constexpr int PATCH = 64 * 64;  // elements of pre or of results that one TMA copy moves

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
    __device__ __forceinline__ void next() {
        if (++index == STAGES) index = 0, parity ^= 1;
    }
};

extern "C" __global__ void __launch_bounds__((WARPS + 1) * WARP_SIZE, 1) matmul_gelu_backward_input(
    real* __restrict__ dinp,          // (N, C)
    const real* __restrict__ dout,    // (N, OC)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ pre,     // (N, C)
    int N, int C, int OC,
    const __grid_constant__ TensorMap dinp_tiles, const __grid_constant__ TensorMap dout_tiles,
    const __grid_constant__ TensorMap weight_tiles, const __grid_constant__ TensorMap pre_tiles) {
    extern __shared__ __align__(1024) Vec shared[];
    __shared__ Mbarrier full[STAGES], empty[STAGES], loaded[2];  // loaded: one per warpgroup
    real* a = shared->at;                      // (STAGES, TILE_ROWS, DEPTH)              of dout
    real* b = a + STAGES * TILE_ROWS * DEPTH;  // (STAGES, TILE_COLUMNS / 64, DEPTH, 64)  of weight
    real* tiles = b + STAGES * TILE_COLUMNS * DEPTH;  // (2 warpgroups, TILE_COLUMNS / 64, 64, 64)
                                                      //  of pre, then of dinp
    int wide = (C + TILE_COLUMNS - 1) / TILE_COLUMNS;  // tiles side by side
    int lane = lane_id();
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(&full[stage], 1);  // arrivals: the producer thread
            mbarrier_init(&empty[stage], WARPS);  // arrivals: the consumer warps
        }
        for (int i = 0; i < 2; i++) mbarrier_init(&loaded[i], 1);  // arrivals: the leader
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
    real* patches = tiles + group * TILE_COLUMNS * 64;
    int round = 0;  // parity of the tile's copies of pre
    for (int tile = blockIdx.x; tile < TILES; tile += gridDim.x, round ^= 1) {
        int row = tile / wide * TILE_ROWS + y, column = tile % wide * TILE_COLUMNS;
        if (leader) {  // pre arrives while the tile's products are computed
            tma_store_wait<0>();  // the stores of the previous tile have read its patches
            mbarrier_expect(&loaded[group], TILE_COLUMNS / 64 * PATCH * sizeof(real));
            for (int x = 0; x < TILE_COLUMNS; x += 64) {
                tma_load_2d(patches + x / 64 * PATCH, &pre_tiles, &loaded[group], column + x, row);
            }
        }
        __syncwarp();  // wgmma needs all lanes together
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

        mbarrier_wait(&loaded[group], round);  // pre has arrived
#pragma unroll
        for (int j = 0; j < TILE_COLUMNS / 8; j += AHEAD) {
            replace_pre(&sums[4 * j], patches + j / 8 * PATCH, j % 8);
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
}
