// matmul forward: a ring of three stages
// Needs:  real in (float16, bfloat16); sm == 90; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE_ROWS = 128; TILE_COLUMNS = 256; DEPTH = 64; WARPS = 8; GROUP = 8; STAGES = 3;
//         SHARED = (STAGES * (TILE_ROWS + TILE_COLUMNS) + 2 * TILE_ROWS) * DEPTH * sizeof_real;
//         TILES = ceil_div(OC, TILE_COLUMNS) * ceil_div(N, TILE_ROWS)
// Launch: matmul_forward<<<min(TILES, multiprocessors), (WARPS + 1) * warp, SHARED>>>
// Tiles:  out[64, 64]; inp[TILE_ROWS, DEPTH]; weight[TILE_COLUMNS, DEPTH]
// After:  16bit-13

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

// Finds the first row and column of a tile, in grouped order: down GROUP rows of tiles, then one
// column on.
__device__ __forceinline__ void find_tile(int tile, int high, int wide, int& row, int& column) {
    int top = tile / (GROUP * wide) * GROUP, of_group = tile % (GROUP * wide);
    int rows = min(GROUP, high - top);  // rows of tiles in this group
    row = (top + of_group % rows) * TILE_ROWS;
    column = of_group / rows * TILE_COLUMNS;
}

extern "C" __global__ void __launch_bounds__((WARPS + 1) * WARP_SIZE, 1) matmul_forward(
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
    int high = (N + TILE_ROWS - 1) / TILE_ROWS, wide = (OC + TILE_COLUMNS - 1) / TILE_COLUMNS;
    int lane = lane_id(), row, column;
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
        for (int tile = blockIdx.x; tile < high * wide; tile += gridDim.x) {
            find_tile(tile, high, wide, row, column);
            for (int start = 0; start < C; start += DEPTH, now.next()) {
                Mbarrier* done = &full[now.index];
                mbarrier_wait(&empty[now.index], now.parity ^ 1);  // the consumers have read it
                mbarrier_expect(done, (TILE_ROWS + TILE_COLUMNS) * DEPTH * sizeof(real));
                tma_load_2d(a + now.index * TILE_ROWS * DEPTH, &inp_tiles, done, start, row);
                tma_load_2d(b + now.index * TILE_COLUMNS * DEPTH, &weight_tiles, done, start,
                            column);
            }
        }
        return;
    }

    int group = warp_id() / 4, y = group * 64;  // the consumer warpgroup; its first row
    bool leader = threadIdx.x % 128 == 0;       // of the warpgroup
    int own = warp_id() % 4 * 16 + lane / 4, t = lane % 4;  // the lane's row, and another 8 later
    for (int tile = blockIdx.x; tile < high * wide; tile += gridDim.x) {
        find_tile(tile, high, wide, row, column);
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
}
