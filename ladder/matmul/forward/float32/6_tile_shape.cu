// matmul forward, float32 rung 6: tile shape against wave quantization
// Before: in rung 5, two blocks fit on an SM (streaming multiprocessor), so 132 SMs have 264 places
//         for blocks. 4096 x 768 results are 192 tiles of 128 x 128: a quarter of the places is
//         empty. Results of 2304 columns are 576 tiles in three waves, the third nearly empty.
// Change: tiles are 96 wide where this takes less time, counted as waves times width. A wave is a
//         round of one tile in every place. A thread then has 8 x 6 outputs: in each row, four
//         neighbours and two more. It still loads all factors of its rows, so a narrow tile counts
//         as 100 wide.
// Expect: three quarters of the time for these two shapes, plus a little; no difference where there
//         are many waves.
// Needs:  real == float32; C % vector == 0; OC % vector == 0
// Define: ROWS = 8; THREADS = 16; TILE_ROWS = ROWS * THREADS; DEPTH = THREADS;
//         HIGH = ceil_div(N, TILE_ROWS);
//         TILE_COLUMNS = matmul.tiles.tile_columns(HIGH, OC, 2 * multiprocessors, 128, 96, 100);
//         COLUMNS = TILE_COLUMNS // THREADS
// Launch: matmul_forward<<<(ceil_div(OC, TILE_COLUMNS), HIGH), THREADS * THREADS>>>
// After:  float32-5
// Rewrite: tiles are no longer square, so the functions that load and store them become templates
//         over 8 or 6 rows or columns.
// Left:   multiply-adds whose operands are in the same bank of registers wait -> rung 7.

#include "portable.cuh"

// COUNT neighbours that one instruction loads or stores.
template <typename Number, int COUNT>
struct alignas(COUNT * sizeof(Number)) Group { Number at[COUNT]; };

// A thread has COUNT (8 or 6) rows or columns of a tile: a group of four, and a group of REST.
template <int COUNT>
constexpr int REST = COUNT - 4;

// A thread also copies COUNT elements of each tile, since DEPTH equals THREADS.
template <int COUNT>
struct Share {
    Group<real, 4> first;
    Group<real, REST<COUNT>> second;
};

// Loads COUNT neighbours of `matrix` (rows, columns) at (row, column); zeros outside it.
template <int COUNT>
__device__ __forceinline__ Group<real, COUNT> load_group(const real* matrix, int row, int column,
                                                         int rows, int columns) {
    Group<real, COUNT> group = {};
    if (row < rows && column < columns) {
        matrix += (size_t)row * columns + column;
        group = *reinterpret_cast<const Group<real, COUNT>*>(matrix);
    }
    return group;
}

// Loads this thread's share of the tile of `matrix` (rows, C) at `row` and channel `start`.
template <int COUNT>
__device__ __forceinline__ void load_tile(Share<COUNT>& share, const real* matrix, int row,
                                          int start, int rows, int C) {
    int t = threadIdx.x * 4, u = threadIdx.x * REST<COUNT>;
    int second = row + THREADS * 4 + u / DEPTH;
    share.first = load_group<4>(matrix, row + t / DEPTH, start + t % DEPTH, rows, C);
    share.second = load_group<REST<COUNT>>(matrix, second, start + u % DEPTH, rows, C);
}

// Writes the share to shared memory, transposed.
template <int COUNT>
__device__ __forceinline__ void store_tile(float (&tile)[DEPTH][COUNT * THREADS + 4],
                                           const Share<COUNT>& share) {
    int t = threadIdx.x * 4, u = threadIdx.x * REST<COUNT>;
    for (int j = 0; j < 4; j++) {
        tile[t % DEPTH + j][t / DEPTH] = to_float(share.first.at[j]);
    }
    for (int j = 0; j < REST<COUNT>; j++) {
        tile[u % DEPTH + j][THREADS * 4 + u / DEPTH] = to_float(share.second.at[j]);
    }
}

// Loads this thread's COUNT factors of one channel.
template <int COUNT>
__device__ __forceinline__ void load_factors(float (&to)[COUNT], const float* from, int thread) {
    using First = Group<float, 4>;
    using Second = Group<float, REST<COUNT>>;
    First first = *reinterpret_cast<const First*>(from + thread * 4);
    from += THREADS * 4;
    Second second = *reinterpret_cast<const Second*>(from + thread * REST<COUNT>);
    for (int j = 0; j < COUNT; j++) {
        to[j] = j < 4 ? first.at[j] : second.at[j - 4];
    }
}

// Adds the bias to COUNT neighbours of a row, and stores them.
template <int COUNT>
__device__ __forceinline__ void store_results(real* out, const real* bias, const float* sums) {
    Group<real, COUNT> group = {};
    if (bias) group = *reinterpret_cast<const Group<real, COUNT>*>(bias);
    for (int k = 0; k < COUNT; k++) {
        group.at[k] = to_real(sums[k] + to_float(group.at[k]));
    }
    *reinterpret_cast<Group<real, COUNT>*>(out) = group;
}

// The launch bounds limit registers so that two blocks fit on an SM.
extern "C" __global__ void __launch_bounds__(THREADS * THREADS, 2) matmul_forward(
    real* __restrict__ out,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC), or null
    int N, int C, int OC) {
    // Double buffers: one tile is multiplied while the other is filled. Four padding columns: rows
    // begin at multiples of 16 bytes. The stores of a transposed copy take two passes.
    __shared__ alignas(16) float a[2][DEPTH][TILE_ROWS + 4];     // (channel, row)     of inp
    __shared__ alignas(16) float b[2][DEPTH][TILE_COLUMNS + 4];  // (channel, column)  of weight
    int x = threadIdx.x % THREADS, y = threadIdx.x / THREADS;
    int row = blockIdx.y * TILE_ROWS, column = blockIdx.x * TILE_COLUMNS;  // where its tile begins

    float sums[ROWS][COLUMNS] = {};
    Share<ROWS> next_a;
    Share<COLUMNS> next_b;
    load_tile(next_a, inp, row, 0, N, C);
    load_tile(next_b, weight, column, 0, OC, C);
    store_tile<ROWS>(a[0], next_a);
    store_tile<COLUMNS>(b[0], next_b);
    __syncthreads();  // the tiles are complete before any thread reads them
    float as[2][ROWS], bs[2][COLUMNS];  // factors of this channel, and of the next
    load_factors(as[0], a[0][0], y);
    load_factors(bs[0], b[0][0], x);
    for (int next = DEPTH, turn = 0; next < C + DEPTH; next += DEPTH) {
        // Past the last channel these are zeros, which are never multiplied.
        load_tile(next_a, inp, row, next, N, C);
        load_tile(next_b, weight, column, next, OC, C);
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            if (k == DEPTH - 1) {
                turn ^= 1;
                store_tile<ROWS>(a[turn], next_a);
                store_tile<COLUMNS>(b[turn], next_b);
                __syncthreads();  // all threads wrote the next tiles and read the present ones
            }
            load_factors(as[(k + 1) % 2], a[turn][(k + 1) % DEPTH], y);
            load_factors(bs[(k + 1) % 2], b[turn][(k + 1) % DEPTH], x);
            for (int i = 0; i < ROWS; i++) {
                for (int j = 0; j < COLUMNS; j++) {
                    sums[i][j] += as[k % 2][i] * bs[k % 2][j];
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        int r = row + i / 4 * TILE_ROWS / 2 + y * 4 + i % 4;
        if (r >= N) break;
        real* to = out + (size_t)r * OC;
        int c = column + x * 4, d = column + THREADS * 4 + x * REST<COLUMNS>;
        if (c < OC) store_results<4>(to + c, bias ? bias + c : nullptr, sums[i]);
        if (d < OC) store_results<REST<COLUMNS>>(to + d, bias ? bias + d : nullptr, sums[i] + 4);
    }
}
