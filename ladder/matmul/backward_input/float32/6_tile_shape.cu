// matmul backward_input, float32 rung 6: tile shape against wave quantization
// Before: in rung 5, two blocks fit on an SM (streaming multiprocessor), so 132 SMs have 264 places
//         for blocks. 4096 x 768 results are 192 tiles of 128 x 128: a quarter of the places is
//         empty. matmul.forward float32 rung 6 has narrower tiles for this case.
// Change: the tiles of matmul.forward float32 rung 6. They are 96 wide where this takes less time,
//         counted as waves times width. A wave is a round of one tile in every place. A thread then
//         has 8 x 6 outputs: in each row, four neighbours and two more. It still loads all factors
//         of its rows, so a narrow tile counts as 100 wide. Here the sum runs over the rows of
//         weight, whose tile is stored as it is. Registers are scarce, so the next tiles pass
//         through them one after the other.
// Expect: three quarters of the time for results 768 wide, plus a little; no difference where there
//         are many waves.
// Needs:  real == float32; C % vector == 0; OC % vector == 0
// Define: ROWS = 8; THREADS = 16; TILE_ROWS = ROWS * THREADS; DEPTH = THREADS;
//         HIGH = ceil_div(N, TILE_ROWS);
//         TILE_COLUMNS = matmul.tiles.tile_columns(HIGH, C, 2 * multiprocessors, 128, 96, 100);
//         COLUMNS = TILE_COLUMNS // THREADS
// Launch: matmul_backward_input<<<(ceil_div(C, TILE_COLUMNS), HIGH), THREADS * THREADS>>>
// After:  matmul.forward float32-6
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

// Loads this thread's share of the tile of `dout` (N, OC) at `row` and feature `start`.
__device__ __forceinline__ void load_dout(Share<ROWS>& share, const real* dout, int row, int start,
                                          int N, int OC) {
    int y = row + threadIdx.x * 4 / DEPTH, k = start + threadIdx.x * 4 % DEPTH;
    share.first = load_group<4>(dout, y, k, N, OC);
    share.second = load_group<4>(dout, y + TILE_ROWS / 2, k, N, OC);
}

// Writes the share to shared memory, transposed.
__device__ __forceinline__ void store_dout(float (&tile)[DEPTH][TILE_ROWS + 4],
                                           const Share<ROWS>& share) {
    int y = threadIdx.x * 4 / DEPTH, k = threadIdx.x * 4 % DEPTH;
    for (int j = 0; j < 4; j++) {
        tile[k + j][y] = to_float(share.first.at[j]);
        tile[k + j][y + TILE_ROWS / 2] = to_float(share.second.at[j]);
    }
}

// Loads this thread's share of the tile of `weight` (OC, C) at feature `start` and `column`.
__device__ __forceinline__ void load_weight(Share<COLUMNS>& share, const real* weight, int start,
                                            int column, int OC, int C) {
    int k = start + threadIdx.x / THREADS, x = threadIdx.x % THREADS;
    int second = column + THREADS * 4 + x * REST<COLUMNS>;
    share.first = load_group<4>(weight, k, column + x * 4, OC, C);
    share.second = load_group<REST<COLUMNS>>(weight, k, second, OC, C);
}

template <int COUNT>
__device__ __forceinline__ void store_group(float* to, const Group<real, COUNT>& from) {
    Group<float, COUNT> group;
    for (int j = 0; j < COUNT; j++) {
        group.at[j] = to_float(from.at[j]);
    }
    *reinterpret_cast<Group<float, COUNT>*>(to) = group;
}

// Writes the share to shared memory as it is.
__device__ __forceinline__ void store_weight(float (&tile)[DEPTH][TILE_COLUMNS + 4],
                                             const Share<COLUMNS>& share) {
    float* row = tile[threadIdx.x / THREADS];
    int x = threadIdx.x % THREADS;
    store_group(row + x * 4, share.first);
    store_group(row + THREADS * 4 + x * REST<COLUMNS>, share.second);
}

// Loads this thread's COUNT factors of one feature.
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

// Stores COUNT neighbours of a row.
template <int COUNT>
__device__ __forceinline__ void store_results(real* to, const float* sums) {
    Group<real, COUNT> group;
    for (int k = 0; k < COUNT; k++) {
        group.at[k] = to_real(sums[k]);
    }
    *reinterpret_cast<Group<real, COUNT>*>(to) = group;
}

// The launch bounds limit registers so that two blocks fit on an SM.
extern "C" __global__ void __launch_bounds__(THREADS * THREADS, 2) matmul_backward_input(
    real* __restrict__ dinp,          // (N, C)
    const real* __restrict__ dout,    // (N, OC)
    const real* __restrict__ weight,  // (OC, C)
    int N, int C, int OC) {
    // Double buffers: one tile is multiplied while the other is filled. Four padding columns: rows
    // begin at multiples of 16 bytes. The stores of a transposed copy take two passes.
    __shared__ alignas(16) float a[2][DEPTH][TILE_ROWS + 4];     // (feature, row)     of dout
    __shared__ alignas(16) float b[2][DEPTH][TILE_COLUMNS + 4];  // (feature, column)  of weight
    int x = threadIdx.x % THREADS, y = threadIdx.x / THREADS;
    int row = blockIdx.y * TILE_ROWS, column = blockIdx.x * TILE_COLUMNS;  // where its tile begins

    float sums[ROWS][COLUMNS] = {};
    Share<ROWS> next_a;
    Share<COLUMNS> next_b;
    load_dout(next_a, dout, row, 0, N, OC);
    load_weight(next_b, weight, 0, column, OC, C);
    store_dout(a[0], next_a);
    store_weight(b[0], next_b);
    __syncthreads();  // the tiles are complete before any thread reads them
    float as[2][ROWS], bs[2][COLUMNS];  // factors of this feature, and of the next
    load_factors(as[0], a[0][0], y);
    load_factors(bs[0], b[0][0], x);
    for (int next = DEPTH, turn = 0; next < OC + DEPTH; next += DEPTH) {
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            // One tile after the other, so that only one is in registers at a time. Past the last
            // feature these are zeros, which are never multiplied.
            if (k == 0) load_dout(next_a, dout, row, next, N, OC);
            if (k == DEPTH / 2) {
                store_dout(a[turn ^ 1], next_a);
                load_weight(next_b, weight, next, column, OC, C);
            }
            if (k == DEPTH - 1) {
                turn ^= 1;
                store_weight(b[turn], next_b);
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
        real* to = dinp + (size_t)r * C;
        int c = column + x * 4, d = column + THREADS * 4 + x * REST<COLUMNS>;
        if (c < C) store_results<4>(to + c, sums[i]);
        if (d < C) store_results<REST<COLUMNS>>(to + d, sums[i] + 4);
    }
}
