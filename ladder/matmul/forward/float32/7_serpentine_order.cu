// matmul forward, float32 rung 7: serpentine order against register bank conflicts
// Before: registers lie in two banks, the even and the odd ones. In one clock, each bank gives a
//         warp one register. A multiply-add takes three operands; one that the previous
//         multiply-add also took need not be fetched again. In rung 6, this is the factor of the
//         row, but at the end of a row both factors change. Where too many operands come from one
//         bank, the multiply-add waits.
// Change: serpentine order: every other row is computed backwards. At the row's end, the factor of
//         the column stays the same.
// Expect: fewer operands to fetch, and fewer waits. The compiler chooses the registers and the
//         final order; the machine code (SASS) shows its choice.
// Needs:  real == float32; C % vector == 0; OC % vector == 0
// Define: ROWS = 8; THREADS = 16; TILE_ROWS = ROWS * THREADS; DEPTH = THREADS;
//         HIGH = ceil_div(N, TILE_ROWS);
//         TILE_COLUMNS = matmul.tiles.tile_columns(HIGH, OC, 2 * multiprocessors, 128, 96, 100);
//         COLUMNS = TILE_COLUMNS // THREADS
// Launch: matmul_forward<<<(ceil_div(OC, TILE_COLUMNS), HIGH), THREADS * THREADS>>>
// After:  float32-6
// Left:   float32 multiply-adds are seven of eight instructions. The others are loads, stores and
//         addresses.

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
                for (int n = 0; n < COLUMNS; n++) {
                    int j = i % 2 ? COLUMNS - 1 - n : n;  // serpentine order
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
