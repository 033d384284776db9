// matmul_gelu forward, 16bit rung 11: epilogue hidden behind the other's products
// Before: the tile of rung 8 needs 8,704 clocks of shared memory for 6,144 of products. The tile of
//         matmul.forward 16bit rung 18, 128 x 192, needs 11,520 for 9,216. But with gelus, the
//         epilogue of that rung takes longer than the other warpgroup's products, so it is not
//         hidden: loads of bias from shared memory stand between stores, and for all that the
//         compiler knows, the stores change it. So four gelus at a time wait for a load. And for
//         each patch, all warps of the warpgroup wait at two barriers.
// Change: the accumulators start at the bias, which a lane loads during the epilogue before. A warp
//         fills its own patches of 16 x 64 by stmatrix, and stores them itself: no barrier of the
//         warpgroup is left. GROUP = 4: the clusters that run together write whole rows.
// Expect: the special function units need 3,072 clocks for the gelus of a tile, a third of what
//         hides them. So shared memory is the limit; for each product it does about an eighth less
//         than in rung 8.
// Needs:  real in (float16, bfloat16); sm == 90; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE_ROWS = 128; TILE_COLUMNS = 192; PAIRS = ceil_div(N, 2 * TILE_ROWS);
//         CLUSTERS = multiprocessors // 2; DEPTH = 64; WARPS = 8; GROUP = 4; STAGES = 4;
//         SHARED = (STAGES * (TILE_ROWS + TILE_COLUMNS) + 4 * 128) * DEPTH * sizeof_real;
//         TILES = ceil_div(OC, TILE_COLUMNS) * PAIRS
// Launch: matmul_gelu_forward<<<2 * min(TILES, CLUSTERS), (WARPS + 4) * warp, SHARED>>>
// Tiles:  out[16, 64]; pre[16, 64]; inp[TILE_ROWS, DEPTH]; weight[TILE_COLUMNS // 2, DEPTH]
// Rounds: pre, of which it takes the gelu
// After:  matmul.forward 16bit-18
// Left:   bytes and special functions: two results and a gelu for each sum cost energy, hidden or
//         not.

#include "fast_math.cuh"
#include "mma_real.cuh"
#include "wgmma_real.cuh"

constexpr int PATCH = 16 * 64;  // elements of one result that one TMA store writes

constexpr float SCALE = 0.7978845608f;  // sqrt(2 / pi)
constexpr float CUBIC = 0.044715f;
constexpr float LINEAR = -2.0f * LOG2_E * SCALE;  // exp(-2u) = 2^(LINEAR * (x + CUBIC * x^3))

// (1 + tanh(u)) / 2 is the logistic function of 2u. If the power overflows to infinity, its
// reciprocal is 0, which is the right limit.
__device__ __forceinline__ float gelu(float x, float factor) {
    float power = fast_exp2(x * (LINEAR + factor * x * x));  // exp(-2u)
    return x * fast_reciprocal(1.0f + power);
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
__launch_bounds__((WARPS + 4) * WARP_SIZE, 1) matmul_gelu_forward(
    real* __restrict__ out,           // (N, OC)
    real* __restrict__ pre,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC)
    int N, int C, int OC,
    const __grid_constant__ TensorMap out_tiles, const __grid_constant__ TensorMap pre_tiles,
    const __grid_constant__ TensorMap inp_tiles, const __grid_constant__ TensorMap weight_tiles) {
    extern __shared__ __align__(1024) Vec shared[];
    __shared__ Mbarrier full[STAGES], empty[STAGES], turns[2];  // turns: one per warpgroup
    __shared__ volatile float cubic;                            // LINEAR * CUBIC
    real* a = shared->at;                            // (STAGES, TILE_ROWS, DEPTH)     of inp
    real* b = a + STAGES * TILE_ROWS * DEPTH;        // (STAGES, TILE_COLUMNS, DEPTH)  of weight
    real* patches = b + STAGES * TILE_COLUMNS * DEPTH;  // (WARPS, 2, 2, 16, 64)  of pre, out
    int wide = (OC + TILE_COLUMNS - 1) / TILE_COLUMNS, rank = cluster_rank();
    int lane = lane_id(), steps = (C + DEPTH - 1) / DEPTH, row, column;
    if (threadIdx.x == 0) {
        cubic = LINEAR * CUBIC;
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(&full[stage], 1);  // arrivals: the producer thread
            mbarrier_init(&empty[stage], WARPS);  // arrivals: one warpgroup in each block
        }
        for (int i = 0; i < 2; i++) mbarrier_init(&turns[i], 4);  // arrivals: the other's warps
    }
    cluster_barrier();  // both blocks' barriers are initialized before any thread uses them

    Stage now;
    if (warp_id() >= WARPS) {  // the producer warpgroup, of which one thread works
        fewer_registers<24>();
        int half = rank * TILE_COLUMNS / 2;
        bool producer = threadIdx.x == WARPS * WARP_SIZE;
        for (int pair = blockIdx.x / 2; producer && pair < TILES; pair += gridDim.x / 2) {
            find_pair(pair, PAIRS, wide, row, column);
#pragma unroll 1
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

    more_registers<240>();
    int warp = warp_uniform(warp_id()), group = warp / 4;  // the consumer warpgroup
    real *own = patches + warp * 4 * PATCH, *rows[4];  // rows: the lane's, in 4 x 16 columns
    for (int p = 0; p < 4; p++) {
        int piece = (2 * p + lane / 16) ^ lane % 8;  // TMA's swizzle
        rows[p] = own + lane % 16 * 64 + piece * VECTOR;
    }
    int stride = gridDim.x / 2, pair = blockIdx.x / 2 + group * stride;
    now.advance(group * steps);
    int before = 1 - group;  // parity of the other warpgroup's turn that precedes this one's
    unsigned biases[TILE_COLUMNS / 8];  // of the lane's two of every 8 columns
    auto load_bias = [&](int pair) {    // ... of a tile, and finds where it begins
        if (pair >= TILES) return;
        find_pair(pair, PAIRS, wide, row, column);
#pragma unroll
        for (int j = 0; j < TILE_COLUMNS / 8; j++) {
            int c = column + j * 8 + lane % 4 * 2;
            biases[j] = c < OC ? *reinterpret_cast<const unsigned*>(bias + c) : 0;
        }
    };
    load_bias(pair);
    for (; pair < TILES; pair += 2 * stride) {
        int first_row = row + rank * TILE_ROWS + warp % 4 * 16, first_column = column;
        float sums[2][TILE_COLUMNS / 2];  // of rows 0 to 63 and 64 to 127
#pragma unroll
        for (int i = 0; i < TILE_COLUMNS / 2; i++) {
            sums[0][i] = sums[1][i] = i % 2 ? high_of(biases[i / 4]) : low_of(biases[i / 4]);
        }
        wgmma_pin(sums[0]), wgmma_pin(sums[1]);
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

#pragma unroll
        for (int s = 0; s < TILE_COLUMNS / 32; s++) {  // the warp's 16 of 64 rows, 64 columns
            int half = s / (TILE_COLUMNS / 64), x = s % (TILE_COLUMNS / 64) * 64;
            int befores = s % 2 * 2 * PATCH, gelus = befores + PATCH;
            // Half of the sums are stored, and their registers free.
            if (s == TILE_COLUMNS / 64) load_bias(pair + 2 * stride);
            if (lane == 0) tma_store_wait<1>();  // the stores from these patches have read them
            __syncwarp();  // ... before the warp overwrites them
            float factor = cubic;  // loaded here, or the compiler starts later patches' gelus early
#pragma unroll
            for (int p = 0; p < 4; p++) {  // 16 columns at a time
                unsigned pres[4], outs[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {  // rows 0 to 7, 8 to 15 of 8 columns; then the next 8
                    const float* two = &sums[half][x / 2 + 8 * p + 2 * i];
                    pres[i] = pack(two[0], two[1]);
                    outs[i] = pack(gelu(low_of(pres[i]), factor), gelu(high_of(pres[i]), factor));
                }
                stmatrix_x4(rows[p] + befores, pres);
                stmatrix_x4(rows[p] + gelus, outs);
            }
            tma_store_fence();  // makes the patches visible to TMA (async proxy)
            __syncwarp();  // all lanes have written before TMA reads
            if (lane == 0) {
                tma_store_2d(&pre_tiles, own + befores, first_column + x, first_row + half * 64);
                tma_store_2d(&out_tiles, own + gelus, first_column + x, first_row + half * 64);
                tma_store_commit();
            }
        }
        __syncwarp();  // wgmma needs all lanes together
    }
    if (lane == 0) tma_store_wait<0>();  // the block stays until TMA has read its shared memory
    __syncwarp();  // all lanes must reach cluster_barrier together
    cluster_barrier();  // neither block ends while the other still arrives at its barriers
}
