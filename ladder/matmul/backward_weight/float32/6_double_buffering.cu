// matmul backward_weight, float32 rung 6: double buffering in shared memory and registers
// Before: rung 5 loads tiles, waits, multiplies, waits, and only then loads the next tiles. 16bit
//         rungs 6 to 15 avoid this, but with tensor cores, which do not multiply float32 elements.
// Change: 16bit rung 7's double buffering, on rung 5. A thread loads its share of the next tiles
//         into registers. When the present tiles are nearly used up, it stores the share to the
//         second pair of tiles in shared memory. The factors of the next row are loaded while those
//         of this one are multiplied. Two blocks fit on an SM, so the rows are split into parts for
//         one wave of 2 * multiprocessors blocks, for three, or for four: whichever takes the least
//         time by an estimate in rows. To write the sums of five tiles and read them again costs
//         one row.
// Expect: no multiply-add waits for a load. There is one barrier per step instead of two, and the
//         SM's other block multiplies meanwhile. Bound by float32 arithmetic.
// Needs:  real == float32; C % vector == 0; OC % vector == 0
// Define: EACH = 8; THREADS = 16; TILE = EACH * THREADS; DEPTH = 16;
//         TILES = ceil_div(C, TILE) * ceil_div(OC, TILE);
//         SPLITS = matmul.tiles.split_rows(TILES, N, 2 * multiprocessors);
//         LENGTH = ceil_div(N, SPLITS)
// Launch: matmul_backward_weight<<<(ceil_div(C, TILE), ceil_div(OC, TILE), SPLITS),
//         THREADS * THREADS>>>
// Launch: matmul_backward_weight_finish<<<ceil_div(OC * C, 4 * 256), 256>>>
// Scratch: float32 partial[SPLITS, OC, C]
// After:  5
// Left:   multiply-adds whose operands are in the same bank of registers wait -> rung 7.

#include "portable.cuh"

struct alignas(16) Floats { float at[4]; };  // one 16-byte load or store

constexpr int SHARE = TILE * DEPTH / (THREADS * THREADS * VECTOR);  // vectors of a tile per thread

// Loads this thread's share of the tile of `matrix` (rows, columns) at (row, column).
__device__ __forceinline__ void load_tile(Vec (&share)[SHARE], const real* matrix, int row,
                                          int column, int rows, int columns) {
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
        int r = row + threadIdx.x / THREADS;
        int c = column + (s * THREADS + threadIdx.x % THREADS) * VECTOR;
        share[s] = {};  // zeros outside the matrix
        if (r < rows && c < columns) share[s] = load_vec(matrix + (size_t)r * columns + c);
    }
}

// Writes the share to shared memory as it is.
__device__ __forceinline__ void store_tile(float (&tile)[DEPTH][TILE], const Vec (&share)[SHARE]) {
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
        int r = threadIdx.x / THREADS, c = (s * THREADS + threadIdx.x % THREADS) * VECTOR;
        for (int j = 0; j < VECTOR; j += 4) {
            Floats four = {to_float(share[s][j]), to_float(share[s][j + 1]),
                           to_float(share[s][j + 2]), to_float(share[s][j + 3])};
            *reinterpret_cast<Floats*>(&tile[r][c + j]) = four;
        }
    }
}

// Loads this thread's EACH factors of one row: four neighbours, and four half a tile later.
__device__ __forceinline__ void load_factors(float (&to)[EACH], const float* from, int thread) {
    for (int half = 0; half < 2; half++) {
        Floats four = *reinterpret_cast<const Floats*>(from + half * TILE / 2 + thread * 4);
        for (int j = 0; j < 4; j++) {
            to[half * 4 + j] = four.at[j];
        }
    }
}

// The launch bounds limit registers so that two blocks fit on an SM.
extern "C" __global__ void __launch_bounds__(THREADS * THREADS, 2) matmul_backward_weight(
    float* __restrict__ dweight,    // (OC, C)  accumulates
    const real* __restrict__ dout,  // (N, OC)
    const real* __restrict__ inp,   // (N, C)
    int N, int C, int OC,
    float* __restrict__ partial) {  // (SPLITS, OC, C)  sums over the rows of each split
    // Double buffers: one tile is multiplied while the other is filled.
    __shared__ alignas(16) float a[2][DEPTH][TILE];  // (row of dout, row of the tile)
    __shared__ alignas(16) float b[2][DEPTH][TILE];  // (row of inp, column of the tile)
    int x = threadIdx.x % THREADS, y = threadIdx.x / THREADS;
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;  // where the block's tile begins
    int first = blockIdx.z * LENGTH, end = min(first + LENGTH, N);  // its rows of dout and inp

    float sums[EACH][EACH] = {};
    Vec share[SHARE];
    load_tile(share, dout, first, row, end, OC);
    store_tile(a[0], share);
    load_tile(share, inp, first, column, end, C);
    store_tile(b[0], share);
    __syncthreads();  // the tiles are complete before any thread reads them
    float as[2][EACH], bs[2][EACH];  // factors of this row, and of the next
    load_factors(as[0], a[0][0], y);
    load_factors(bs[0], b[0][0], x);
    for (int next = first + DEPTH, turn = 0; next < end + DEPTH; next += DEPTH) {
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            // One tile after the other, so that only one is in registers at a time. Past the last
            // row these are zeros, which are never multiplied.
            if (k == 0) load_tile(share, dout, next, row, end, OC);
            if (k == DEPTH / 2) {
                store_tile(a[turn ^ 1], share);
                load_tile(share, inp, next, column, end, C);
            }
            if (k == DEPTH - 1) {
                turn ^= 1;
                store_tile(b[turn], share);
                __syncthreads();  // all threads wrote the next tiles and read the present ones
            }
            load_factors(as[(k + 1) % 2], a[turn][(k + 1) % DEPTH], y);
            load_factors(bs[(k + 1) % 2], b[turn][(k + 1) % DEPTH], x);
            for (int i = 0; i < EACH; i++) {
                for (int j = 0; j < EACH; j++) {
                    sums[i][j] += as[k % 2][i] * bs[k % 2][j];
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int r = row + i / 4 * TILE / 2 + y * 4 + i % 4;
        if (r >= OC) break;
#pragma unroll
        for (int j = 0; j < EACH; j += 4) {
            int c = column + j / 4 * TILE / 2 + x * 4;
            if (c >= C) break;
            Floats four = {sums[i][j], sums[i][j + 1], sums[i][j + 2], sums[i][j + 3]};
            *reinterpret_cast<Floats*>(partial + ((size_t)blockIdx.z * OC + r) * C + c) = four;
        }
    }
}

// Adds the SPLITS partial sums to dweight; a thread adds four neighbours.
extern "C" __global__ void matmul_backward_weight_finish(
    float* __restrict__ dweight, int N, int C, int OC, const float* __restrict__ partial) {
    size_t index = ((size_t)blockIdx.x * 256 + threadIdx.x) * 4, size = (size_t)OC * C;
    if (index >= size) return;
    Floats* to = reinterpret_cast<Floats*>(dweight + index);
    Floats sum = *to;
    for (int split = 0; split < SPLITS; split++) {
        Floats four = *reinterpret_cast<const Floats*>(partial + split * size + index);
        for (int k = 0; k < 4; k++) {
            sum.at[k] += four.at[k];
        }
    }
    *to = sum;
}
