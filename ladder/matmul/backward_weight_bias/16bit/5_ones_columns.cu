// matmul backward_weight_bias, 16bit rung 5: ones as more columns of inp
// Before: rung 4 has a product of its own for the ones, which is as slow as its reads of dout.
// Change: the ones lie behind the tile of inp, where its next 64 columns would be, in every stage
//         of the ring. One product of 136 or 200 columns instead of 128 or 192 multiplies dout with
//         inp and with 8 columns of ones. In a formula: the bias is the weight of one more input,
//         which is always 1.
// Expect: 8 columns more than 128 or 192, in the first tiles only. The ones take 8 KiB of
//         each stage. Tiles of 128 columns keep 4 stages of 6.
// Needs:  real in (float16, bfloat16); sm == 90; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE_ROWS = 128; DEPTH = 64; WARPS = 8; STEPS = ceil_div(N, DEPTH);
//         HIGH = ceil_div(OC, TILE_ROWS);
//         TILE_COLUMNS, PARTS = matmul.tiles.split_tiles(HIGH, C, OC, STEPS, multiprocessors);
//         STAGES = 4;
//         SHARE = ceil_div(STEPS, PARTS); WIDE = ceil_div(C, TILE_COLUMNS); TILES = HIGH * WIDE;
//         PATCH = 64 * 32; THREADS = WARPS * warp; SLICES = 8;
//         SHARED = STAGES * (TILE_ROWS + TILE_COLUMNS + 64) * DEPTH * sizeof_real + 4 * PATCH * 4
// Launch: matmul_backward_weight_bias<<<min(TILES * PARTS, multiprocessors), THREADS + warp,
//         SHARED>>>
// Launch: matmul_backward_weight_bias_finish<<<(TILES, SLICES), THREADS>>> if PARTS > 1
// Scratch: float32 partial[PARTS, TILES if PARTS > 1 else 1, TILE_ROWS, TILE_COLUMNS];
//         float32 partial_bias[PARTS, HIGH, TILE_ROWS]
// Tiles:  dweight[64, 32]; dout[DEPTH, 64]; inp[DEPTH, 64]
// After:  16bit-4
// Left:   both warpgroups end their tile at the same time: the tensor cores idle while accumulators
//         go to shared memory.

#include "portable.cuh"
#include "wgmma_real.cuh"
#include "wgmma_widths.cuh"

struct alignas(16) Floats { float at[4]; };  // one 16-byte load or store
struct alignas(8) Pair { float at[2]; };

constexpr int BLOCK = DEPTH * 64;  // elements of a tile of 64 columns
constexpr int B_TILE = (TILE_COLUMNS + 64) * DEPTH;  // of a tile of inp, and of the ones behind it

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

// Adds the products of the part's steps to the warpgroup's accumulators, and releases their stages.
// `a`: the warpgroup's tiles of dout. Of more than TILE_COLUMNS, the last 8 columns are ones.
template <int COLUMNS>
__device__ __forceinline__ void multiply(float (&sums)[COLUMNS / 2], const Part& part, Stage& now,
                                         const real* a, const real* b, Mbarrier* full,
                                         Mbarrier* empty) {
    int before = 0;  // the previous step's stage
    for (int step = part.first; step < part.last; step++, now.next()) {
        mbarrier_wait(&full[now.index], now.parity);  // the stage's copies have arrived
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            const real* tile_a = a + now.index * TILE_ROWS * DEPTH + k * 64;
            const real* tile_b = b + now.index * B_TILE + k * 64;
            if constexpr (COLUMNS == TILE_COLUMNS) {
                wgmma_m64k16<COLUMNS, true, BLOCK * sizeof(real)>(sums, tile_a, tile_b);
            } else {
                wgmma_m64k16_width<COLUMNS, true, BLOCK * sizeof(real)>(sums, tile_a, tile_b);
            }
        }
        wgmma_commit();
        wgmma_wait<1>();  // the products of the previous stage are done
        __syncwarp();     // in all lanes, before the stage is released
        if (step > part.first && lane_id() == 0) mbarrier_arrive(&empty[before]);
        before = now.index;
    }
    wgmma_wait<0>(sums);
    __syncwarp();  // all lanes' products are done before the stage is released
    if (lane_id() == 0 && part.first < part.last) mbarrier_arrive(&empty[before]);
}

// Adds sums of two rows of the tile to dbias (OC), or puts a part of them into partial_bias.
__device__ __forceinline__ void add_bias(float* dbias, float* partial_bias, const float* sums,
                                         const Part& part, int row, int OC) {
    if (lane_id() % 4 > 0) return;  // four lanes have the same sums
    for (int r = 0; r < 2; r++, row += 8) {
        if (part.last - part.first < STEPS) {
            partial_bias[part.number * HIGH * TILE_ROWS + row] = sums[2 * r];
        } else if (row < OC) {
            dbias[row] += sums[2 * r];
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS + WARP_SIZE, 1) matmul_backward_weight_bias(
    float* __restrict__ dweight,    // (OC, C)  accumulates
    float* __restrict__ dbias,      // (OC)  accumulates
    const real* __restrict__ dout,  // (N, OC)
    const real* __restrict__ inp,   // (N, C)
    int N, int C, int OC,
    float* __restrict__ partial,       // (PARTS, TILES, TILE_COLUMNS / 8, THREADS, 4)
    float* __restrict__ partial_bias,  // (PARTS, HIGH * TILE_ROWS)
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
    if (warp_id() == WARPS) {  // the producer warp
        if (lane > 0) return;
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

    int group = warp_uniform(warp_id() / 4);  // the warpgroup; each multiplies its own tile of dout
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
        float sums[TILE_COLUMNS / 2 + 4] = {};  // accumulators, as mma.sync's D, 4 per matrix
        const real* tiles = a + group * BLOCK;
        if (column > 0) {
            multiply<TILE_COLUMNS>(reinterpret_cast<float(&)[TILE_COLUMNS / 2]>(sums), part, now,
                                   tiles, b, full, empty);
        } else {  // the first tile of these rows of dweight
            multiply<TILE_COLUMNS + 8>(sums, part, now, tiles, b, full, empty);
            add_bias(dbias, partial_bias, sums + TILE_COLUMNS / 2, part, row + warp_id() * 16 + g,
                     OC);
        }

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

// Adds the partial sums of a tile to dweight and dbias, always in the same order.
extern "C" __global__ void matmul_backward_weight_bias_finish(
    float* __restrict__ dweight, float* __restrict__ dbias, int N, int C, int OC,
    const float* __restrict__ partial, const float* __restrict__ partial_bias,
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
    if (blockIdx.x % WIDE > 0 || blockIdx.y > 0 || threadIdx.x >= TILE_ROWS) return;
    row = blockIdx.x / WIDE * TILE_ROWS + threadIdx.x;
    float sum = 0.0f;
    for (int part = 0; part < PARTS; part++) {
        sum += partial_bias[part * HIGH * TILE_ROWS + row];
    }
    if (row < OC) dbias[row] += sum;
}
