// matmul backward_weight, 16bit rung 15: tile shape against wave quantization
// Before: in rung 14, a layer's dweight has 18 to 72 tiles of 128 x 256. They are split until there
//         are enough parts for 132 SMs, and every part is written to memory and read again. In a
//         long sum, the parts also start at many places. Then blocks load rows that no other block
//         needs at that time.
// Change: tiles are 192 or 128 wide, and the parts of a tile are equal. A tile is not split, or it
//         is split so that a block gets one part, or three: whichever takes the least time by an
//         estimate. The estimate's unit is one column of a step. A step costs 48 units more,
//         whatever its width. To write 1,100 partial sums and read them again costs one unit.
// Expect: no partial sums at all at N = 4096, except for 768 x 768. Where tiles are split, blocks
//         that multiply the same rows do so at the same time.
// Needs:  real in (float16, bfloat16); sm == 90; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE_ROWS = 128; DEPTH = 64; WARPS = 8; STEPS = ceil_div(N, DEPTH);
//         HIGH = ceil_div(OC, TILE_ROWS);
//         TILE_COLUMNS, PARTS = matmul.tiles.split_tiles(HIGH, C, OC, STEPS, multiprocessors);
//         STAGES = 6 if TILE_COLUMNS == 128 else 4;
//         SHARE = ceil_div(STEPS, PARTS); WIDE = ceil_div(C, TILE_COLUMNS); TILES = HIGH * WIDE;
//         PATCH = 64 * 32; THREADS = WARPS * warp; SLICES = 8;
//         SHARED = STAGES * (TILE_ROWS + TILE_COLUMNS) * DEPTH * sizeof_real + 4 * PATCH * 4
// Launch: matmul_backward_weight<<<min(TILES * PARTS, multiprocessors), THREADS + warp, SHARED>>>
// Launch: matmul_backward_weight_finish<<<(TILES, SLICES), THREADS>>> if PARTS > 1
// Scratch: float32 partial[PARTS, TILES if PARTS > 1 else 1, TILE_ROWS, TILE_COLUMNS]
// Tiles:  dweight[64, 32]; dout[DEPTH, 64]; inp[DEPTH, 64]
// After:  16bit-14
// Left:   both warpgroups end their tile at the same time: the tensor cores idle while accumulators
//         go to shared memory.

#include "portable.cuh"
#include "wgmma_real.cuh"

struct alignas(16) Floats { float at[4]; };  // one 16-byte load or store
struct alignas(8) Pair { float at[2]; };

constexpr int BLOCK = DEPTH * 64;  // elements of a tile of 64 columns

// A position in the ring of stages. The parity that its barriers wait for flips with every round.
struct Stage {
    int index = 0, parity = 0;
    __device__ __forceinline__ void next() {
        if (++index == STAGES) index = 0, parity ^= 1;
    }
};

// A work unit of a block: steps [first, last) of a tile. `number` is the part's number in the tile.
// The last parts of a tile may be empty; their sums are then zeros.
struct Part { int tile, first, last, number; };

// Finds the block's part number `turn`. Returns false after the last. Neighbouring blocks have the
// same part of neighbouring tiles, so they read the same rows.
__device__ __forceinline__ bool find_part(int turn, Part& part) {
    int i = turn * gridDim.x + blockIdx.x, number = i / TILES;
    part = {i % TILES, number * SHARE, min((number + 1) * SHARE, STEPS), number};
    return i < TILES * PARTS;
}

// Adds a lane's four accumulators, two in each of two rows, to dweight (OC, C).
__device__ __forceinline__ void add(float* dweight, const float (&sums)[4], int row, int column,
                                    int C, int OC) {
    if (column >= C) return;
#pragma unroll
    for (int r = 0; r < 2; r++, row += 8) {
        if (row >= OC) continue;
        Pair* to = reinterpret_cast<Pair*>(dweight + (size_t)row * C + column);
        Pair sum = *to;
        sum.at[0] += sums[2 * r];
        sum.at[1] += sums[2 * r + 1];
        *to = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS + WARP_SIZE, 1) matmul_backward_weight(
    float* __restrict__ dweight,    // (OC, C)  accumulates
    const real* __restrict__ dout,  // (N, OC)
    const real* __restrict__ inp,   // (N, C)
    int N, int C, int OC,
    float* __restrict__ partial,    // (PARTS, TILES, TILE_COLUMNS / 8, THREADS, 4)
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

        if (part.last - part.first < STEPS) {
            size_t place = (size_t)(part.number * TILES + part.tile) * (TILE_COLUMNS / 8);
            Floats* parts = reinterpret_cast<Floats*>(partial) + place * THREADS;
#pragma unroll
            for (int j = 0; j < TILE_COLUMNS / 8; j++) {
                parts[j * THREADS + threadIdx.x] = {sums[4 * j], sums[4 * j + 1], sums[4 * j + 2],
                                                    sums[4 * j + 3]};
            }
            continue;
        }
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

// Adds the partial sums of a tile to dweight, always in the same order.
extern "C" __global__ void matmul_backward_weight_finish(
    float* __restrict__ dweight, int N, int C, int OC, const float* __restrict__ partial,
    const __grid_constant__ TensorMap dweight_tiles, const __grid_constant__ TensorMap dout_tiles,
    const __grid_constant__ TensorMap inp_tiles) {
    int row = blockIdx.x / WIDE * TILE_ROWS + warp_id() * 16 + lane_id() / 4;
    int column = blockIdx.x % WIDE * TILE_COLUMNS + lane_id() % 4 * 2;
    constexpr int COUNT = TILE_COLUMNS / 8 / SLICES;
#pragma unroll
    for (int j = blockIdx.y * COUNT; j < (blockIdx.y + 1) * COUNT; j++) {
        float sums[4] = {};
#pragma unroll
        for (int part = 0; part < PARTS; part++) {
            size_t place = (size_t)(part * TILES + blockIdx.x) * (TILE_COLUMNS / 8) + j;
            const float* from = partial + (place * THREADS + threadIdx.x) * 4;
            Floats four = *reinterpret_cast<const Floats*>(from);
            for (int k = 0; k < 4; k++) {
                sums[k] += four.at[k];
            }
        }
        add(dweight, sums, row, column + j * 8, C, OC);
    }
}
