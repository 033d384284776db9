// matmul_residual forward, 16bit rung 2: ping-pong with tiles of 128 x 192, the stream by TMA
// Before: matmul.forward 16bit rung 18 stores the product, and a second kernel adds it to the
//         stream. Loads of the stream by the consumers would lengthen the end of a tile, and take
//         registers.
// Change: while a tile's products are computed, TMA copies two slices of 64 columns of the stream
//         into the patches for the results. The sums are added there, in place, and TMA stores the
//         patch. The third slice is copied when the first one's results have left. Where
//         L2 can keep weight, tiles side by side are neighbours in time (GROUP = 1): of all orders,
//         this one reads the fewest rows of inp twice.
// Expect: the time of the product alone, and a little for the stream in shared memory: where
//         C = 768, 16 clocks of its bandwidth for each 16 channels of a tile, beside 224 for the
//         product. The layernorm that follows reads one array instead of two and writes one
//         instead of two.
// Needs:  real in (float16, bfloat16); sm == 90; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE_ROWS = 128; TILE_COLUMNS = 192; PAIRS = ceil_div(N, 2 * TILE_ROWS);
//         CLUSTERS = multiprocessors // 2; DEPTH = 64; WARPS = 8; STAGES = 4;
//         GROUP = 1 if C * OC < 12000000 else 8; AHEAD = 4; SLICES = TILE_COLUMNS // 64;
//         SHARED = (STAGES * (TILE_ROWS + TILE_COLUMNS) + 4 * TILE_ROWS) * DEPTH * sizeof_real;
//         TILES = ceil_div(OC, TILE_COLUMNS) * PAIRS
// Launch: matmul_residual_forward<<<2 * min(TILES, CLUSTERS), (WARPS + 4) * warp, SHARED>>>
// Tiles:  out[TILE_ROWS, 64]; stream[TILE_ROWS, 64]; inp[TILE_ROWS, DEPTH];
//         weight[TILE_COLUMNS // 2, DEPTH]
// After:  matmul.forward 16bit-18
// Left:   only the additions of the second slice hide the copy of the third.

#include "mma_real.cuh"
#include "wgmma_real.cuh"

struct alignas(4) Pair { real low, high; };  // one load of bias

constexpr int PATCH = TILE_ROWS * 64;  // elements of the stream, or of results, in a patch

// Adds sums and bias to the lane's elements of the stream, in AHEAD matrices of 8 columns from
// matrix `first` of a patch on. All loads come before the first store, because the compiler cannot
// know that a store does not change what is loaded next.
__device__ __forceinline__ void add_to_stream(const float* sums, const Pair* biases, real* patch,
                                              int first) {
    int lane = lane_id(), own = warp_id() % 4 * 16 + lane / 4, t = lane % 4;
    Pair *places[2 * AHEAD], xs[2 * AHEAD];  // `own`: the lane's row; it has another one 8 later
#pragma unroll
    for (int i = 0; i < 2 * AHEAD; i++) {
        int piece = (first + i / 2) ^ own % 8;  // TMA's swizzle
        real* row = patch + (own + i % 2 * 8) * 64;
        places[i] = reinterpret_cast<Pair*>(row + piece * VECTOR + 2 * t);
        xs[i] = *places[i];
    }
#pragma unroll
    for (int i = 0; i < 2 * AHEAD; i++) {
        Pair x = xs[i], b = biases[i / 2 * 4 + t];
        *reinterpret_cast<unsigned*>(places[i]) =
            pack(sums[2 * i] + to_float(b.low) + to_float(x.low),
                 sums[2 * i + 1] + to_float(b.high) + to_float(x.high));
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

// Finds the first row and column of a pair of tiles, in grouped order: down GROUP rows of pairs,
// then one column on.
__device__ __forceinline__ void find_pair(int pair, int high, int wide, int& row, int& column) {
    int top = pair / (GROUP * wide) * GROUP, of_group = pair % (GROUP * wide);
    int rows = min(GROUP, high - top);  // rows of pairs in this group
    row = (top + of_group % rows) * 2 * TILE_ROWS;
    column = of_group / rows * TILE_COLUMNS;
}

extern "C" __global__ void __cluster_dims__(2, 1, 1)
__launch_bounds__((WARPS + 4) * WARP_SIZE, 1) matmul_residual_forward(
    real* __restrict__ out,           // (N, OC)
    const real* __restrict__ stream,  // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC)
    int N, int C, int OC,
    const __grid_constant__ TensorMap out_tiles, const __grid_constant__ TensorMap stream_tiles,
    const __grid_constant__ TensorMap inp_tiles, const __grid_constant__ TensorMap weight_tiles) {
    extern __shared__ __align__(1024) Vec shared[];
    __shared__ Mbarrier full[STAGES], empty[STAGES], turns[2];  // turns: one per warpgroup
    __shared__ Mbarrier loaded[2][2];                           // for each warpgroup's two patches
    __shared__ Pair biases[2][TILE_COLUMNS / 2];                // also one tile's per warpgroup
    real* a = shared->at;                            // (STAGES, TILE_ROWS, DEPTH)     of inp
    real* b = a + STAGES * TILE_ROWS * DEPTH;        // (STAGES, TILE_COLUMNS, DEPTH)  of weight
    real* patches = b + STAGES * TILE_COLUMNS * DEPTH;  // (2 warpgroups, 2, 128, 64): stream, out
    int wide = (OC + TILE_COLUMNS - 1) / TILE_COLUMNS, rank = cluster_rank();
    int lane = lane_id(), steps = (C + DEPTH - 1) / DEPTH, row, column;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(&full[stage], 1);  // arrivals: the producer thread
            mbarrier_init(&empty[stage], WARPS);  // arrivals: one warpgroup in each block
        }
        for (int i = 0; i < 2; i++) mbarrier_init(&turns[i], 4);  // arrivals: the other's warps
        for (int i = 0; i < 4; i++) mbarrier_init(&loaded[i / 2][i % 2], 1);  // the leader
    }
    cluster_barrier();  // both blocks' barriers are initialized before any thread uses them

    Stage now;
    if (warp_id() >= WARPS) {  // the producer warpgroup, of which one thread works
        fewer_registers<40>();
        int half = rank * TILE_COLUMNS / 2;
        bool producer = threadIdx.x == WARPS * WARP_SIZE;
        for (int pair = blockIdx.x / 2; producer && pair < TILES; pair += gridDim.x / 2) {
            find_pair(pair, PAIRS, wide, row, column);
            for (int start = 0; start < C; start += DEPTH, now.advance(1)) {
                Mbarrier* done = &full[now.index];
                mbarrier_wait(&empty[now.index], now.parity ^ 1);  // the consumers have read it
                mbarrier_expect(done, (TILE_ROWS + TILE_COLUMNS) * DEPTH * sizeof(real));
                tma_load_2d(a + now.index * TILE_ROWS * DEPTH, &inp_tiles, done, start,
                            row + rank * TILE_ROWS);
                tma_load_2d_multicast(b + (now.index * TILE_COLUMNS + half) * DEPTH, &weight_tiles,
                                      done, start, column + half, 3);
            }
        }
        __syncwarp();  // all lanes must reach cluster_barrier together
        cluster_barrier();  // neither block ends while the other still copies to its memory
        return;
    }

    more_registers<232>();
    int group = warp_uniform(warp_id() / 4);  // the consumer warpgroup
    bool leader = threadIdx.x % 128 == 0;     // of the warpgroup
    patches += group * 2 * PATCH;
    int rounds = 0;  // bit i: the parity of the next copy to the warpgroup's patch i
    int stride = gridDim.x / 2;
    now.advance(group * steps);
    int before = 1 - group;  // parity of the other warpgroup's turn that precedes this one's
    for (int pair = blockIdx.x / 2 + group * stride; pair < TILES; pair += 2 * stride) {
        find_pair(pair, PAIRS, wide, row, column);
        row += rank * TILE_ROWS;
        auto copy_stream = [&](int slice) {  // one thread calls it
            Mbarrier* done = &loaded[group][slice % 2];
            mbarrier_expect(done, PATCH * sizeof(real));
            tma_load_2d(patches + slice % 2 * PATCH, &stream_tiles, done, column + slice * 64, row);
        };
        if (leader) {  // two slices arrive while the tile's products are computed
            tma_store_wait<0>();  // the stores of the previous tile have read its patches
            copy_stream(0);
            copy_stream(1);
        }
        __syncwarp();  // wgmma needs all lanes together
        int pair_of_thread = threadIdx.x % 128;  // of the tile's columns
        Pair own_bias = {};
        if (pair_of_thread < TILE_COLUMNS / 2 && column + 2 * pair_of_thread < OC) {
            own_bias = *reinterpret_cast<const Pair*>(bias + column + 2 * pair_of_thread);
        }
        float sums[2][TILE_COLUMNS / 2] = {};  // of rows 0 to 63 and 64 to 127
        mbarrier_wait(&turns[group], before);  // without it, `full` may be a round behind
        before ^= 1;
        int last = 0;  // the previous stage
        for (int step = 0; step < steps; step++, now.advance(1)) {
            mbarrier_wait(&full[now.index], now.parity);  // the stage's copies have arrived
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < DEPTH; k += 16) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    wgmma_m64k16<TILE_COLUMNS>(
                        sums[half], a + (now.index * TILE_ROWS + half * 64) * DEPTH + k,
                        b + now.index * TILE_COLUMNS * DEPTH + k);
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

        if (pair_of_thread < TILE_COLUMNS / 2) biases[group][pair_of_thread] = own_bias;
        named_barrier(1 + group, 128);  // all biases are there
#pragma unroll
        for (int slice = 0; slice < SLICES; slice++) {  // 64 columns at a time
            int place = slice % 2;
            real* patch = patches + place * PATCH;
            if (slice > 0 && slice + 1 < SLICES) {  // the previous slice's patch takes the next one
                if (leader) {
                    tma_store_wait<0>();  // its store has read it
                    copy_stream(slice + 1);
                }
                __syncwarp();
            }
            mbarrier_wait(&loaded[group][place], rounds >> place & 1);  // the slice has arrived
            rounds ^= 1 << place;
#pragma unroll
            for (int i = 0; i < 16; i += AHEAD) {  // 8 columns of 64 rows at a time
                int half = i / 8, j = slice * 8 + i % 8;
                add_to_stream(&sums[half][4 * j], &biases[group][4 * j], patch + half * 64 * 64,
                              i % 8);
            }
            tma_store_fence();  // makes the patch visible to TMA (async proxy)
            named_barrier(1 + group, 128);  // all of it is written before TMA reads it
            if (leader) {
                tma_store_2d(&out_tiles, patch, column + slice * 64, row);
                tma_store_commit();
            }
        }
    }
    if (leader) tma_store_wait<0>();  // the block stays until TMA has read its shared memory
    __syncwarp();  // all lanes must reach cluster_barrier together
    cluster_barrier();  // neither block ends while the other still arrives at its barriers
}
