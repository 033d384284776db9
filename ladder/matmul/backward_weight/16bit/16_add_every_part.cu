// matmul backward_weight, 16bit rung 16: every part of a sum added by TMA
// Before: in rung 15, the parts of a tile go to memory, and a second kernel reads them and adds
//         them to dweight. A small weight is split into many parts: 22 of 384 x 384 floats, where N
//         is 16384.
// Change: every part is added to dweight by TMA, as rung 14 does with whole tiles. There are no
//         partial sums in memory, and there is no second kernel.
// Expect: half as many bytes for the parts, which no thread waits for, and a launch less. No
//         difference where tiles are whole.
// Needs:  real in (float16, bfloat16); sm == 90; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE_ROWS = 128; DEPTH = 64; WARPS = 8; STEPS = ceil_div(N, DEPTH);
//         HIGH = ceil_div(OC, TILE_ROWS);
//         TILE_COLUMNS, PARTS = matmul.tiles.split_tiles(HIGH, C, OC, STEPS, multiprocessors);
//         STAGES = 6 if TILE_COLUMNS == 128 else 4;
//         SHARE = ceil_div(STEPS, PARTS); WIDE = ceil_div(C, TILE_COLUMNS); TILES = HIGH * WIDE;
//         PATCH = 64 * 32; THREADS = WARPS * warp;
//         SHARED = STAGES * (TILE_ROWS + TILE_COLUMNS) * DEPTH * sizeof_real + 4 * PATCH * 4
// Launch: matmul_backward_weight<<<min(TILES * PARTS, multiprocessors), THREADS + warp, SHARED>>>
// Tiles:  dweight[64, 32]; dout[DEPTH, 64]; inp[DEPTH, 64]
// Deterministic: no, the parts of a sum are added in any order
// After:  16bit-15
// Left:   all blocks end at about the same time, and then L2 has all their parts to add, while the
//         tensor cores idle.

#include "portable.cuh"
#include "wgmma_real.cuh"

struct alignas(8) Pair { float at[2]; };

constexpr int BLOCK = DEPTH * 64;  // elements of a tile of 64 columns

// A position in the ring of stages. The parity that its barriers wait for flips with every round.
struct Stage {
    int index = 0, parity = 0;
    __device__ __forceinline__ void next() {
        if (++index == STAGES) index = 0, parity ^= 1;
    }
};

// A work unit of a block: steps [first, last) of a tile. The last parts of a tile may be empty;
// their sums are then zeros.
struct Part { int tile, first, last; };

// Finds the block's part number `turn`. Returns false after the last. Neighbouring blocks have the
// same part of neighbouring tiles, so they read the same rows.
__device__ __forceinline__ bool find_part(int turn, Part& part) {
    int i = turn * gridDim.x + blockIdx.x, number = i / TILES;
    part = {i % TILES, number * SHARE, min((number + 1) * SHARE, STEPS)};
    return i < TILES * PARTS;
}

extern "C" __global__ void __launch_bounds__(THREADS + WARP_SIZE, 1) matmul_backward_weight(
    float* __restrict__ dweight,    // (OC, C)  accumulates
    const real* __restrict__ dout,  // (N, OC)
    const real* __restrict__ inp,   // (N, C)
    int N, int C, int OC,
    const __grid_constant__ TensorMap dweight_tiles, const __grid_constant__ TensorMap dout_tiles,
    const __grid_constant__ TensorMap inp_tiles) {
    extern __shared__ __align__(1024) Vec shared[];
    __shared__ Mbarrier full[STAGES], empty[STAGES];
    real* a = shared->at;                      // (STAGES, TILE_ROWS / 64, DEPTH, 64)     of dout
    real* b = a + STAGES * TILE_ROWS * DEPTH;  // (STAGES, TILE_COLUMNS / 64, DEPTH, 64)  of inp
    float* patches = reinterpret_cast<float*>(b + STAGES * TILE_COLUMNS * DEPTH);  // (4, PATCH)
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
    if (warp_id() == WARPS) {  // the producer warp
        if (lane > 0) return;
        for (int turn = 0; find_part(turn, part); turn++) {
            int row = part.tile / WIDE * TILE_ROWS, column = part.tile % WIDE * TILE_COLUMNS;
            for (int n = part.first * DEPTH; n < part.last * DEPTH; n += DEPTH, now.next()) {
                Mbarrier* done = &full[now.index];
                mbarrier_wait(&empty[now.index], now.parity ^ 1);  // the consumers have read it
                mbarrier_expect(done, (TILE_ROWS + TILE_COLUMNS) * DEPTH * sizeof(real));
                real* to_a = a + now.index * TILE_ROWS * DEPTH;
                real* to_b = b + now.index * TILE_COLUMNS * DEPTH;
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

    int group = warp_uniform(warp_id() / 4);  // the warpgroup; each multiplies its own tile of dout
    bool leader = threadIdx.x % 128 == 0;     // of the warpgroup
    float* patch = patches + 2 * group * PATCH;  // of the warpgroup's two, the one filled next
    for (int turn = 0; find_part(turn, part); turn++) {
        int row = part.tile / WIDE * TILE_ROWS, column = part.tile % WIDE * TILE_COLUMNS;
        float sums[TILE_COLUMNS / 2] = {};  // accumulators, laid out as mma.sync's D, 4 per matrix
        int before = 0;  // the previous step's stage
        for (int step = part.first; step < part.last; step++, now.next()) {
            mbarrier_wait(&full[now.index], now.parity);  // the stage's copies have arrived
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < DEPTH; k += 16) {
                wgmma_m64k16<TILE_COLUMNS, true, BLOCK * sizeof(real)>(
                    sums, a + now.index * TILE_ROWS * DEPTH + group * BLOCK + k * 64,
                    b + now.index * TILE_COLUMNS * DEPTH + k * 64);
            }
            wgmma_commit();
            wgmma_wait<1>();  // the products of the previous stage are done
            __syncwarp();     // in all lanes, before the stage is released
            if (step > part.first && lane == 0) mbarrier_arrive(&empty[before]);
            before = now.index;
        }
        wgmma_wait<0>(sums);
        __syncwarp();  // all lanes' products are done before the stage is released
        if (lane == 0 && part.first < part.last) mbarrier_arrive(&empty[before]);

#pragma unroll
        for (int x = 0; x < TILE_COLUMNS; x += 32) {
            if (leader) tma_store_wait<1>();  // the previous store from this patch has read it
            named_barrier(1 + group, 128);  // ... before the warpgroup overwrites it
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float* four = sums + x / 2 + 4 * j;
                float* to = patch + (warp_id() % 4 * 16 + g) * 32;  // the other row is 8 later
                int piece = (2 * j + t / 2 ^ g) * 4 + t % 2 * 2;      // TMA's swizzle
                *reinterpret_cast<Pair*>(to + piece) = {four[0], four[1]};
                *reinterpret_cast<Pair*>(to + 8 * 32 + piece) = {four[2], four[3]};
            }
            tma_store_fence();  // makes the patch visible to TMA (async proxy)
            named_barrier(1 + group, 128);  // all of it is written before TMA reads it
            if (leader) {
                tma_add_2d(&dweight_tiles, patch, column + x, row + group * 64);
                tma_store_commit();
            }
            patch = patches + (patch - patches ^ PATCH);  // the other patch
        }
    }
    if (leader) tma_store_wait<0>();  // the block stays until TMA has read its shared memory
}
