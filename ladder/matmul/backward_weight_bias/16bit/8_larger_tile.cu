// matmul backward_weight_bias, 16bit rung 8: larger tiles (256 x 192)
// Before: rung 7 multiplies tiles of 128 x 192. A step takes 40 KB from L2. Where sums are long,
//         energy limits the clock, and every byte costs some.
// Change: tiles of 256 x 192. A warpgroup has 128 rows, for two products of 64 x 192. Their
//         accumulators need 200 registers a thread. The producer gives its own away (setmaxnreg),
//         and is a whole warpgroup for that. Three of the larger stages fit. Sums are split into
//         as many parts as fill the SMs, and none is empty. L2 is asked to keep dweight
//         (evict_last): the factors would push it out between two parts.
// Expect: a step of twice the products takes 56 KB from L2. The end of a part takes longer, and
//         short sums have too few steps to make up for it.
// Needs:  real in (float16, bfloat16); sm == 90; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE_ROWS = 256; TILE_COLUMNS = 192; DEPTH = 64; WARPS = 8; STEPS = ceil_div(N, DEPTH);
//         HIGH = ceil_div(OC, TILE_ROWS); WIDE = ceil_div(C, TILE_COLUMNS); TILES = HIGH * WIDE;
//         PARTS = matmul.tiles.equal_parts(TILES, STEPS, multiprocessors, 6);
//         STAGES = 3; SHARE = ceil_div(STEPS, PARTS);
//         PATCH = 64 * 32; THREADS = WARPS * warp;
//         SHARED = STAGES * (TILE_ROWS + TILE_COLUMNS + 64) * DEPTH * sizeof_real + 4 * PATCH * 4
// Launch: matmul_backward_weight_bias<<<min(TILES * PARTS, multiprocessors), THREADS + 4 * warp,
//         SHARED>>>
// Tiles:  dweight[64, 32]; dout[DEPTH, 64]; inp[DEPTH, 64]
// Deterministic: no, L2 adds the parts in any order
// After:  16bit-7
// Left:   the end of a part: up to 26 MB of sums go to L2 at once, while the tensor cores idle
//         -> rung 9.

#include "portable.cuh"
#include "wgmma_real.cuh"
#include "wgmma_widths.cuh"

struct alignas(8) Pair { float at[2]; };

constexpr int BLOCK = DEPTH * 64;  // elements of a tile of 64 columns
constexpr int B_TILE = (TILE_COLUMNS + 64) * DEPTH;  // of a tile of inp, and of the ones behind it
using Sums = float[2][TILE_COLUMNS / 2 + 4];  // accumulators of a warpgroup's rows, 64 and 64

// A position in the ring of stages. The parity that its barriers wait for flips with every round.
struct Stage {
    int index = 0, parity = 0;
    __device__ __forceinline__ void next() {
        if (++index == STAGES) index = 0, parity ^= 1;
    }
};

// A work unit of a block: steps [first, last) of a tile, with ones or without.
struct Part { int tile, first, last; bool ones; };

// Finds the block's part number `turn`. Returns false after the last. Neighbouring blocks have the
// same part of neighbouring tiles, so they read the same rows. Of the WIDE tiles of a row, one has
// the ones, and in the next row or part the next one has them.
__device__ __forceinline__ bool find_part(int turn, Part& part) {
    int i = turn * gridDim.x + blockIdx.x, number = i / TILES;
    part = {i % TILES, number * SHARE, min((number + 1) * SHARE, STEPS),
            i % WIDE == i / WIDE % WIDE};
    return i < TILES * PARTS;
}

// Adds the products of the part's steps to the warpgroup's accumulators, and releases their stages.
// `a`: the warpgroup's tiles of dout. Of more than TILE_COLUMNS, the last 8 columns are ones.
template <int COLUMNS>
__device__ __forceinline__ void multiply(Sums& sums, const Part& part, Stage& now, const real* a,
                                         const real* b, Mbarrier* full, Mbarrier* empty) {
    int before = 0;  // the previous step's stage
    for (int step = part.first; step < part.last; step++, now.next()) {
        int index = warp_uniform(now.index);  // the descriptors are then computed once a warp
        mbarrier_wait(&full[index], now.parity);  // the stage's copies have arrived
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            const real* tile_b = b + index * B_TILE + k * 64;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const real* tile_a = a + index * TILE_ROWS * DEPTH + half * BLOCK + k * 64;
                float (&d)[COLUMNS / 2] = reinterpret_cast<float(&)[COLUMNS / 2]>(sums[half]);
                if constexpr (COLUMNS == TILE_COLUMNS) {
                    wgmma_m64k16<COLUMNS, true, BLOCK * sizeof(real)>(d, tile_a, tile_b);
                } else {
                    wgmma_m64k16_width<COLUMNS, true, BLOCK * sizeof(real)>(d, tile_a, tile_b);
                }
            }
        }
        wgmma_commit();
        wgmma_wait<1>();  // the products of the previous stage are done
        __syncwarp();     // in all lanes, before the stage is released
        if (step > part.first && lane_id() == 0) mbarrier_arrive(&empty[before]);
        before = index;
    }
    wgmma_wait<0>(sums[0], sums[1]);
    __syncwarp();  // all lanes' products are done before the stage is released
    if (lane_id() == 0) mbarrier_arrive(&empty[before]);
}

// Adds the sums of two rows to dbias (OC).
__device__ __forceinline__ void add_bias(float* dbias, const float* sums, int row, int OC) {
    if (lane_id() % 4 > 0) return;  // four lanes have the same sums
    for (int r = 0; r < 2; r++, row += 8) {
        if (row < OC) atomicAdd(dbias + row, sums[2 * r]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS + 4 * WARP_SIZE, 1)
matmul_backward_weight_bias(
    float* __restrict__ dweight,    // (OC, C)  accumulates
    float* __restrict__ dbias,      // (OC)  accumulates
    const real* __restrict__ dout,  // (N, OC)
    const real* __restrict__ inp,   // (N, C)
    int N, int C, int OC,
    const __grid_constant__ TensorMap dweight_tiles, const __grid_constant__ TensorMap dout_tiles,
    const __grid_constant__ TensorMap inp_tiles) {
    extern __shared__ __align__(1024) Vec shared[];
    __shared__ Mbarrier full[STAGES], empty[STAGES];
    real* a = shared->at;                      // (STAGES, TILE_ROWS / 64, DEPTH, 64)     of dout
    real* b = a + STAGES * TILE_ROWS * DEPTH;  // (STAGES, TILE_COLUMNS / 64 + 1, DEPTH, 64)  of inp
    float* patches = reinterpret_cast<float*>(b + STAGES * B_TILE);  // (4, PATCH)
    int lane = lane_id(), g = lane / 4, t = lane % 4;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(&full[stage], 1);  // arrivals: the producer thread
            mbarrier_init(&empty[stage], WARPS);  // arrivals: the consumer warps
        }
    }
    __syncthreads();  // the barriers are initialized before any thread waits on them

    Stage now;
    Part part;
    if (warp_id() >= WARPS) {  // the producer warpgroup, of which one thread works
        fewer_registers<40>();
        if (threadIdx.x > THREADS) return;
        for (int turn = 0; find_part(turn, part); turn++) {
            int row = part.tile / WIDE * TILE_ROWS, column = part.tile % WIDE * TILE_COLUMNS;
            for (int n = part.first * DEPTH; n < part.last * DEPTH; n += DEPTH, now.next()) {
                Mbarrier* done = &full[now.index];
                mbarrier_wait(&empty[now.index], now.parity ^ 1);  // the consumers have read it
                mbarrier_expect(done, (TILE_ROWS + TILE_COLUMNS) * DEPTH * sizeof(real));
                real* to_a = a + now.index * TILE_ROWS * DEPTH;
                real* to_b = b + now.index * B_TILE;
                for (int x = 0; x < TILE_ROWS; x += 64) {
                    tma_load_2d(to_a + x * DEPTH, &dout_tiles, done, row + x, n);
                }
                for (int x = 0; x < TILE_COLUMNS; x += 64) {
                    tma_load_2d(to_b + x * DEPTH, &inp_tiles, done, column + x, n);
                }
            }
        }
        return;
    }

    more_registers<232>();
    int group = warp_uniform(warp_id() / 4);  // the warpgroup; each has 128 rows of a tile
    bool leader = threadIdx.x % 128 == 0;     // of the warpgroup
    Vec v;
    for (int j = 0; j < VECTOR; j++) {
        v[j] = to_real(1.0f);
    }
    for (int i = threadIdx.x * VECTOR; i < STAGES * BLOCK; i += THREADS * VECTOR) {
        store_vec(b + i / BLOCK * B_TILE + TILE_COLUMNS * DEPTH + i % BLOCK, v);
    }
    tma_store_fence();          // makes the ones visible to wgmma (async proxy)
    named_barrier(3, THREADS);  // the consumers have written them before any of them multiplies
    float* patch = patches + 2 * group * PATCH;  // of the warpgroup's two, the one filled next
    for (int turn = 0; find_part(turn, part); turn++) {
        int row = part.tile / WIDE * TILE_ROWS, column = part.tile % WIDE * TILE_COLUMNS;
        row += group * 128;
        Sums sums = {};  // accumulators, as mma.sync's D, 4 per matrix
        const real* tiles = a + group * 2 * BLOCK;
        if (!part.ones) {
            multiply<TILE_COLUMNS>(sums, part, now, tiles, b, full, empty);
        } else {
            multiply<TILE_COLUMNS + 8>(sums, part, now, tiles, b, full, empty);
            for (int half = 0; half < 2; half++) {
                add_bias(dbias, sums[half] + TILE_COLUMNS / 2,
                         row + half * 64 + warp_id() % 4 * 16 + g, OC);
            }
        }

#pragma unroll
        for (int s = 0; s < TILE_COLUMNS / 16; s++) {  // 64 rows and 32 columns at a time
            int half = s / (TILE_COLUMNS / 32), x = s % (TILE_COLUMNS / 32) * 32;
            if (leader) tma_store_wait<1>();  // the previous store from this patch has read it
            named_barrier(1 + group, 128);  // ... before the warpgroup overwrites it
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float* four = sums[half] + x / 2 + 4 * j;
                float* to = patch + (warp_id() % 4 * 16 + g) * 32;  // the other row is 8 later
                int piece = (2 * j + t / 2 ^ g) * 4 + t % 2 * 2;      // TMA's swizzle
                *reinterpret_cast<Pair*>(to + piece) = {four[0], four[1]};
                *reinterpret_cast<Pair*>(to + 8 * 32 + piece) = {four[2], four[3]};
            }
            tma_store_fence();  // makes the patch visible to TMA (async proxy)
            named_barrier(1 + group, 128);  // all of it is written before TMA reads it
            if (leader) {
                tma_add_2d_evict_last(&dweight_tiles, patch, column + x, row + half * 64);
                tma_store_commit();
            }
            patch = patches + (patch - patches ^ PATCH);  // the other patch
        }
    }
    if (leader) tma_store_wait<0>();  // the block stays until TMA has read its shared memory
}
