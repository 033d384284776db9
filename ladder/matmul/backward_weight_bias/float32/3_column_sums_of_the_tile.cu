// matmul backward_weight_bias, float32 rung 3: column sums of the shared tile
// Before: rung 2 loads two factors from shared memory for each multiply-add. matmul.backward_weight
//         float32 rung 7 has register tiling, double buffering, and split-K over the rows.
// Change: the product of matmul.backward_weight float32 rung 7, with the sums. 16 threads have the
//         same factors of dout there, so each would add them up once more. Instead, while a tile of
//         dout is in shared memory, every thread adds up half of one column of it: 8 elements,
//         beside 1,024 multiply-adds. Only the first block of a row of tiles does this. Its sums go
//         to memory beside the partial sums of dweight.
// Expect: the time of that product, to a percent or two.
// Needs:  real == float32; C % vector == 0; OC % vector == 0
// Define: EACH = 8; THREADS = 16; TILE = EACH * THREADS; DEPTH = 16;
//         TILES = ceil_div(C, TILE) * ceil_div(OC, TILE);
//         SPLITS = matmul.tiles.split_rows(TILES, N, 2 * multiprocessors);
//         LENGTH = ceil_div(N, SPLITS)
// Launch: matmul_backward_weight_bias<<<(ceil_div(C, TILE), ceil_div(OC, TILE), SPLITS),
//         THREADS * THREADS>>>
// Launch: matmul_backward_weight_bias_finish<<<ceil_div(OC * C, 4 * 256), 256>>>
// Scratch: float32 partial[SPLITS, OC, C]; float32 partial_bias[SPLITS, 2, OC]
// After:  matmul.backward_weight float32-7
// Left:   float32 multiply-adds are seven of eight instructions, as in that product.

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
extern "C" __global__ void __launch_bounds__(THREADS * THREADS, 2) matmul_backward_weight_bias(
    float* __restrict__ dweight,    // (OC, C)  accumulates
    float* __restrict__ dbias,      // (OC)  accumulates
    const real* __restrict__ dout,  // (N, OC)
    const real* __restrict__ inp,   // (N, C)
    int N, int C, int OC,
    float* __restrict__ partial,         // (SPLITS, OC, C)  sums over the rows of each split
    float* __restrict__ partial_bias) {  // (SPLITS, 2, OC)
    // Double buffers: one tile is multiplied while the other is filled.
    __shared__ alignas(16) float a[2][DEPTH][TILE];  // (row of dout, row of the tile)
    __shared__ alignas(16) float b[2][DEPTH][TILE];  // (row of inp, column of the tile)
    int x = threadIdx.x % THREADS, y = threadIdx.x / THREADS;
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;  // where the block's tile begins
    int first = blockIdx.z * LENGTH, end = min(first + LENGTH, N);  // its rows of dout and inp

    float sums[EACH][EACH] = {}, bias = 0.0f;
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
            // Each of the two halves of the block adds up 8 rows of the tile of dout.
            if (column == 0 && k == 0) {
                for (int i = 0; i < DEPTH; i += 2) {
                    bias += a[turn][i + threadIdx.x / TILE][threadIdx.x % TILE];
                }
            }
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
                for (int n = 0; n < EACH; n++) {
                    int j = i % 2 ? EACH - 1 - n : n;  // serpentine order
                    sums[i][j] += as[k % 2][i] * bs[k % 2][j];
                }
            }
        }
    }
    if (column == 0 && row + threadIdx.x % TILE < OC) {
        int half = blockIdx.z * 2 + threadIdx.x / TILE;
        partial_bias[(size_t)half * OC + row + threadIdx.x % TILE] = bias;
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

// Adds the partial sums to dweight and dbias; a thread adds four neighbours of dweight.
extern "C" __global__ void matmul_backward_weight_bias_finish(
    float* __restrict__ dweight, float* __restrict__ dbias, int N, int C, int OC,
    const float* __restrict__ partial, const float* __restrict__ partial_bias) {
    size_t thread = (size_t)blockIdx.x * 256 + threadIdx.x, index = thread * 4;
    size_t size = (size_t)OC * C;  // there are more threads than OC, since C is at least 4
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
    if (thread >= OC) return;
    float bias = dbias[thread];
    for (int part = 0; part < 2 * SPLITS; part++) {
        bias += partial_bias[(size_t)part * OC + thread];
    }
    dbias[thread] = bias;
}
