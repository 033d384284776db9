// matmul backward_weight, 16bit rung 13: warp specialization with TMA
// Before: in rung 12, all warps spend instructions on copies, and meet at a barrier in every step.
//         The tensor cores idle while a block loads its first tiles of a part.
// Change: warp specialization, as in matmul.forward 16bit rung 13. One thread of a ninth warp, the
//         producer, asks the tensor memory accelerator (TMA) for copies, as far ahead as there are
//         empty stages, and across the end of a part. Two warpgroups, the consumers, only multiply
//         and store.
// Expect: no instructions for copies, no zeros to write past the end, no pause between two parts.
// Needs:  real in (float16, bfloat16); sm == 90; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE_ROWS = 128; TILE_COLUMNS = 256; DEPTH = 64; WARPS = 8; STAGES = 4;
//         SHARED = STAGES * (TILE_ROWS + TILE_COLUMNS) * DEPTH * sizeof_real;
//         WIDE = ceil_div(C, TILE_COLUMNS); TILES = WIDE * ceil_div(OC, TILE_ROWS);
//         STEPS = ceil_div(N, DEPTH); WAVES = TILES // multiprocessors;
//         REST = TILES % multiprocessors;
//         SHARE, LINE = matmul.tiles.stream_k(REST, STEPS, multiprocessors);
//         FULL = STEPS // SHARE; LEFT = STEPS % SHARE; SLOTS = FULL + 2;
//         THREADS = WARPS * warp; SLICES = 8
// Launch: matmul_backward_weight<<<multiprocessors, THREADS + warp, SHARED>>>
// Launch: matmul_backward_weight_finish<<<(max(1, REST), SLICES), THREADS>>>
// Scratch: float32 partial[max(1, REST), SLOTS, TILE_ROWS, TILE_COLUMNS]
// Tiles:  dout[DEPTH, 64]; inp[DEPTH, 64]
// After:  16bit-12
// Left:   the tensor cores idle while a block adds its accumulators to dweight, or stores them ->
//         rung 14.

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

// A work unit of a block: steps [first, last) of a tile. `slot` is where its partial sums go, among
// those of the tile.
struct Part { int tile, first, last, slot; };

// Finds the block's part number `turn`. Returns false after the last.
__device__ __forceinline__ bool find_part(int turn, Part& part) {
    int block = blockIdx.x;
    if (turn < WAVES) {  // whole tiles, while there is one for every block
        part = {turn * (int)gridDim.x + block, 0, STEPS, 0};
        return true;
    }
    turn -= WAVES;
    if (block < FULL * REST) {  // SHARE steps of a tile; neighbouring blocks read the same rows
        int share = block / max(REST, 1), tile = TILES - REST + block % max(REST, 1);
        part = {tile, share * SHARE, (share + 1) * SHARE, share};
        return turn == 0;
    }
    // The last LEFT steps of all these tiles form one line. A block takes LINE steps of it.
    if (LEFT == 0) return false;
    int begin = (block - FULL * REST) * LINE, end = min(begin + LINE, REST * LEFT);
    int tile = begin / max(LEFT, 1) + turn, line = tile * LEFT;
    int first = max(begin, line), last = min(end, line + LEFT), skip = FULL * SHARE - line;
    part = {TILES - REST + tile, first + skip, last + skip, FULL + (first > line)};
    return first < last;
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
    float* __restrict__ partial,    // (REST, SLOTS, TILE_COLUMNS / 8, THREADS, 4)
    const __grid_constant__ TensorMap dout_tiles, const __grid_constant__ TensorMap inp_tiles) {
    extern __shared__ __align__(1024) Vec shared[];
    __shared__ Mbarrier full[STAGES], empty[STAGES];
    real* a = shared->at;                      // (STAGES, TILE_ROWS / 64, DEPTH, 64)     of dout
    real* b = a + STAGES * TILE_ROWS * DEPTH;  // (STAGES, TILE_COLUMNS / 64, DEPTH, 64)  of inp
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

    int group = warp_id() / 4;  // the warpgroup; each multiplies its own tile of dout
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
        if (lane == 0) mbarrier_arrive(&empty[before]);

        bool whole = part.last - part.first == STEPS;
        size_t place = ((part.tile - (TILES - REST)) * SLOTS + part.slot) * (TILE_COLUMNS / 8);
        Floats* parts = reinterpret_cast<Floats*>(partial) + place * THREADS;
#pragma unroll
        for (int j = 0; j < TILE_COLUMNS / 8; j++) {
            float four[4] = {sums[4 * j], sums[4 * j + 1], sums[4 * j + 2], sums[4 * j + 3]};
            if (whole) {
                add(dweight, four, row + warp_id() * 16 + g, column + j * 8 + 2 * t, C, OC);
            } else {
                parts[j * THREADS + threadIdx.x] = {four[0], four[1], four[2], four[3]};
            }
        }
    }
}

// Adds the partial sums of a split tile to dweight, always in the same order.
extern "C" __global__ void matmul_backward_weight_finish(
    float* __restrict__ dweight, int N, int C, int OC, const float* __restrict__ partial,
    const __grid_constant__ TensorMap dout_tiles, const __grid_constant__ TensorMap inp_tiles) {
    if (REST == 0 || SHARE == STEPS) return;  // no tile was split
    int tile = TILES - REST + blockIdx.x, line = blockIdx.x * LEFT;
    bool cut = LEFT > 1 && line / LINE < (line + LEFT - 1) / LINE;  // its last steps are split too
    int slots = FULL + (LEFT > 0) + cut;
    int row = tile / WIDE * TILE_ROWS + warp_id() * 16 + lane_id() / 4;
    int column = tile % WIDE * TILE_COLUMNS + lane_id() % 4 * 2;
    constexpr int COUNT = TILE_COLUMNS / 8 / SLICES;
#pragma unroll
    for (int j = blockIdx.y * COUNT; j < (blockIdx.y + 1) * COUNT; j++) {
        float sums[4] = {};
        for (int slot = 0; slot < slots; slot++) {
            size_t place = (blockIdx.x * SLOTS + slot) * (TILE_COLUMNS / 8) + j;
            const float* from = partial + (place * THREADS + threadIdx.x) * 4;
            Floats four = *reinterpret_cast<const Floats*>(from);
            for (int k = 0; k < 4; k++) {
                sums[k] += four.at[k];
            }
        }
        add(dweight, sums, row, column + j * 8, C, OC);
    }
}
