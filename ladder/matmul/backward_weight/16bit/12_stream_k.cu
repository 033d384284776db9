// matmul backward_weight, 16bit rung 12: stream-K (an equal share of the work for every SM)
// Before: rung 11 splits the rows so that there are blocks for about three waves. The last wave is
//         not full, and the more parts, the more partial sums must be written and read again.
// Change: stream-K (Osama et al., PPoPP 2023, arXiv:2301.03598): one block on every SM. Each takes
//         whole tiles, while there is one for all, and adds them to dweight at once. Of the
//         remaining tiles, every block gets a share. The share is an even part of one tile. Where
//         that leaves too many blocks without work, it is an equal number of steps instead, even if
//         these come from several tiles and more partial sums must be stored.
// Expect: SMs finish nearly together, whatever the shape; this gains most where tiles are few.
//         Blocks with the same steps of different tiles read the same rows at the same time, from
//         L2.
// Needs:  real in (float16, bfloat16); sm == 90; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE_ROWS = 128; TILE_COLUMNS = 256; DEPTH = 64; WARPS = 8; STAGES = 4;
//         SHARED = STAGES * (TILE_ROWS + TILE_COLUMNS) * DEPTH * sizeof_real;
//         WIDE = ceil_div(C, TILE_COLUMNS); TILES = WIDE * ceil_div(OC, TILE_ROWS);
//         STEPS = ceil_div(N, DEPTH); WAVES = TILES // multiprocessors;
//         REST = TILES % multiprocessors;
//         SHARE, LINE = matmul.tiles.stream_k(REST, STEPS, multiprocessors);
//         FULL = STEPS // SHARE; LEFT = STEPS % SHARE; SLOTS = FULL + 2;
//         THREADS = WARPS * warp; SLICES = 8
// Launch: matmul_backward_weight<<<multiprocessors, THREADS, SHARED>>>
// Launch: matmul_backward_weight_finish<<<(max(1, REST), SLICES), THREADS>>>
// Scratch: float32 partial[max(1, REST), SLOTS, TILE_ROWS, TILE_COLUMNS]
// After:  16bit-11
// Left:   the tensor cores idle while a block loads the first tiles of a part, and while it stores.
//         The tensor memory accelerator could also copy without spending instructions -> rung 13.

#include "async.cuh"
#include "wgmma_real.cuh"

struct alignas(16) Floats { float at[4]; };  // one 16-byte load or store
struct alignas(8) Pair { float at[2]; };

constexpr int BLOCK = DEPTH * 64;  // elements of a tile of 64 columns

// Swizzle: the position of 16-byte piece p of a row in tiles of DEPTH rows, as wgmma expects it.
__device__ __forceinline__ int place(int row, int p) {
    return p / 8 * BLOCK + row * 64 + (p % 8 ^ row % 8) * VECTOR;
}

// Starts to copy a tile of `matrix` (rows, columns) at (row, column); zeros outside it.
template <int WIDTH>  // of the tiles, side by side
__device__ __forceinline__ void copy_tiles(real* tiles, const real* matrix, int row, int column,
                                           int rows, int columns) {
    constexpr int PIECES = WIDTH / VECTOR;            // 16-byte pieces per row
    constexpr int STEP = WARPS * WARP_SIZE / PIECES;  // rows that the block copies at once
    int y = threadIdx.x / PIECES, p = threadIdx.x % PIECES, c = column + p * VECTOR;
    const real* from = matrix + (size_t)(row + y) * columns + c;
    real* to = tiles + place(y, p);
#pragma unroll
    for (int s = 0; s < DEPTH; s += STEP) {  // STEP is a multiple of 8: the swizzle repeats
        cp_async_16_or_zero(to + s * 64, from + (size_t)s * columns,
                            row + y + s < rows && c < columns);
    }
}

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

extern "C" __global__ void __launch_bounds__(THREADS) matmul_backward_weight(
    float* __restrict__ dweight,    // (OC, C)  accumulates
    const real* __restrict__ dout,  // (N, OC)
    const real* __restrict__ inp,   // (N, C)
    int N, int C, int OC,
    float* __restrict__ partial) {  // (REST, SLOTS, TILE_COLUMNS / 8, THREADS, 4)
    extern __shared__ __align__(1024) Vec shared[];
    real* a = shared->at;                      // (STAGES, TILE_ROWS / 64, DEPTH, 64)     of dout
    real* b = a + STAGES * TILE_ROWS * DEPTH;  // (STAGES, TILE_COLUMNS / 64, DEPTH, 64)  of inp
    int group = warp_id() / 4;  // the warpgroup; each multiplies its own tile of dout
    int lane = lane_id(), g = lane / 4, t = lane % 4;
    Part part;
    for (int turn = 0; find_part(turn, part); turn++) {
        int row = part.tile / WIDE * TILE_ROWS, column = part.tile % WIDE * TILE_COLUMNS;
        auto copy = [&](int stage, int step) {  // copies zeros past the end: cheaper than a branch
            int n = step * DEPTH;
            copy_tiles<TILE_ROWS>(a + stage * TILE_ROWS * DEPTH, dout, n, row, N, OC);
            copy_tiles<TILE_COLUMNS>(b + stage * TILE_COLUMNS * DEPTH, inp, n, column, N, C);
            cp_async_commit();
        };
        __syncthreads();  // the previous part's products are done before its tiles are refilled
        for (int stage = 0; stage < STAGES - 2; stage++) {
            copy(stage, part.first + stage);
        }
        float sums[TILE_COLUMNS / 2] = {};  // accumulators, laid out as mma.sync's D, 4 per matrix
        for (int step = part.first, stage = 0; step < part.last; step++) {
            cp_async_wait<STAGES - 3>();
            tma_store_fence();  // makes the writes visible to wgmma (async proxy)
            __syncthreads();  // this stage has arrived; the stage filled next is free again
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < DEPTH; k += 16) {
                wgmma_m64k16<TILE_COLUMNS, true, BLOCK * sizeof(real)>(
                    sums, a + stage * TILE_ROWS * DEPTH + group * BLOCK + k * 64,
                    b + stage * TILE_COLUMNS * DEPTH + k * 64);
            }
            wgmma_commit();
            copy((stage + STAGES - 2) % STAGES, step + STAGES - 2);
            stage = (stage + 1) % STAGES;
            wgmma_wait<1>();
        }
        wgmma_wait<0>(sums);
        cp_async_wait<0>();

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
    float* __restrict__ dweight, int N, int C, int OC, const float* __restrict__ partial) {
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
