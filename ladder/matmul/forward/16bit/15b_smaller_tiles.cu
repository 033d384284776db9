// matmul forward, 16bit rung 15b: tiles of 128 x 128, and six stages
// Before: in rung 15, a tile of 128 x 256 ends with a long store, and its stages of 48 KB leave
//         room for four.
// Change: tiles of 128 x 128, so stages of 32 KB, of which six fit. Groups are eight pairs high
//         instead of four, as many rows and columns of tiles at a time as before.
// Expect: the producer may run six steps ahead instead of four. But a warpgroup reads as many rows
//         of inp from shared memory for half as many products: slower, unless the ring was too
//         short. It is a step on the way: only with such tiles a warpgroup can have one alone.
// Needs:  real in (float16, bfloat16); sm == 90; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE_ROWS = 128; TILE_COLUMNS = 128; PAIRS = ceil_div(N, 2 * TILE_ROWS);
//         CLUSTERS = multiprocessors // 2; DEPTH = 64; WARPS = 8; GROUP = 8; STAGES = 6;
//         SHARED = (STAGES * (TILE_ROWS + TILE_COLUMNS) + 2 * TILE_ROWS) * DEPTH * sizeof_real;
//         TILES = ceil_div(OC, TILE_COLUMNS) * PAIRS
// Launch: matmul_forward<<<2 * min(TILES, CLUSTERS), (WARPS + 1) * warp, SHARED>>>
// Tiles:  out[64, 64]; inp[TILE_ROWS, DEPTH]; weight[TILE_COLUMNS // 2, DEPTH]
// Pays:   no, smaller tiles read more from shared memory for a product.
// After:  16bit-15
// Left:   both warpgroups store at the same time. If one multiplied meanwhile, the tensor cores
//         would never wait -> rung 16.

#include "mma_real.cuh"
#include "wgmma_real.cuh"

struct alignas(4) Pair { real low, high; };  // one load of bias

constexpr int PATCH = 64 * 64;  // elements of results that one TMA store writes

// A position in the ring of stages. The parity that its barriers wait for flips with every round.
struct Stage {
    int index = 0, parity = 0;
    __device__ __forceinline__ void next() {
        if (++index == STAGES) index = 0, parity ^= 1;
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
__launch_bounds__((WARPS + 1) * WARP_SIZE, 1) matmul_forward(
    real* __restrict__ out,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC), or null
    int N, int C, int OC,
    const __grid_constant__ TensorMap out_tiles, const __grid_constant__ TensorMap inp_tiles,
    const __grid_constant__ TensorMap weight_tiles) {
    extern __shared__ __align__(1024) Vec shared[];
    __shared__ Mbarrier full[STAGES], empty[STAGES];
    real* a = shared->at;                            // (STAGES, TILE_ROWS, DEPTH)     of inp
    real* b = a + STAGES * TILE_ROWS * DEPTH;        // (STAGES, TILE_COLUMNS, DEPTH)  of weight
    real* patches = b + STAGES * TILE_COLUMNS * DEPTH;  // (2 warpgroups, 2, 64, 64)      of out
    int wide = (OC + TILE_COLUMNS - 1) / TILE_COLUMNS, rank = cluster_rank();
    int lane = lane_id(), row, column;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(&full[stage], 1);  // arrivals: the producer thread
            mbarrier_init(&empty[stage], 2 * WARPS);  // arrivals: the consumer warps of both blocks
        }
    }
    cluster_barrier();  // both blocks' barriers are initialized before any thread uses them

    Stage now;
    if (warp_id() == WARPS) {  // the producer warp
        int half = rank * TILE_COLUMNS / 2;
        for (int pair = blockIdx.x / 2; lane == 0 && pair < TILES; pair += gridDim.x / 2) {
            find_pair(pair, PAIRS, wide, row, column);
            for (int start = 0; start < C; start += DEPTH, now.next()) {
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

    int group = warp_uniform(warp_id() / 4), y = group * 64;  // the warpgroup's first row
    bool leader = threadIdx.x % 128 == 0;       // of the warpgroup
    int turn = 0;  // the next patch; a tile may have an odd number of slices
    int own = warp_id() % 4 * 16 + lane / 4, t = lane % 4;  // the lane's row, and another 8 later
    for (int pair = blockIdx.x / 2; pair < TILES; pair += gridDim.x / 2) {
        find_pair(pair, PAIRS, wide, row, column);
        row += rank * TILE_ROWS;
        float sums[TILE_COLUMNS / 2] = {};  // accumulators, laid out as mma.sync's D, 4 per matrix
        int last = 0;  // the previous stage
        for (int start = 0; start < C; start += DEPTH, now.next()) {
            mbarrier_wait(&full[now.index], now.parity);  // the stage's copies have arrived
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < DEPTH; k += 16) {
                wgmma_m64k16<TILE_COLUMNS>(sums, a + (now.index * TILE_ROWS + y) * DEPTH + k,
                                           b + now.index * TILE_COLUMNS * DEPTH + k);
            }
            wgmma_commit();
            wgmma_wait<1>();  // the products of the previous stage are done
            __syncwarp();     // in all lanes, before the stage is released
            if (start > 0 && lane < 2) mbarrier_arrive_at(&empty[last], lane);
            last = now.index;
        }
        wgmma_wait<0>(sums);
        __syncwarp();  // all lanes' products are done before the stage is released
        if (lane < 2) mbarrier_arrive_at(&empty[last], lane);

#pragma unroll
        for (int s = 0; s < TILE_COLUMNS / 64; s++) {  // 64 columns at a time
            real* patch = patches + (group * 2 + turn) * PATCH;
            turn ^= 1;
            if (leader) tma_store_wait<1>();  // the previous store from this patch has read it
            named_barrier(1 + group, 128);  // ... before the warpgroup overwrites it
#pragma unroll
            for (int p = 0; p < 8; p++) {
                int j = s * 8 + p, c = column + j * 8 + 2 * t;
                Pair pair = {};
                if (bias && c < OC) pair = *reinterpret_cast<const Pair*>(bias + c);
                float low = to_float(pair.low), high = to_float(pair.high);
                unsigned* to = reinterpret_cast<unsigned*>(
                    patch + own * 64 + (p ^ own % 8) * VECTOR);  // TMA's swizzle
                to[t] = pack(sums[4 * j] + low, sums[4 * j + 1] + high);
                to[8 * 32 + t] = pack(sums[4 * j + 2] + low, sums[4 * j + 3] + high);
            }
            tma_store_fence();  // makes the patch visible to TMA (async proxy)
            named_barrier(1 + group, 128);  // all of it is written before TMA reads it
            if (leader) {
                tma_store_2d(&out_tiles, patch, column + s * 64, row + y);
                tma_store_commit();
            }
        }
    }
    if (leader) tma_store_wait<0>();  // the block stays until TMA has read its shared memory
    __syncwarp();  // all lanes must reach cluster_barrier together
    cluster_barrier();  // neither block ends while the other still arrives at its barriers
}
