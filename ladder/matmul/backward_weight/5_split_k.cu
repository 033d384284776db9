// matmul backward_weight, rung 5: split-K over the rows
// Before: rung 4 has one block for 128 x 128 elements of dweight: 36 blocks for 768 x 768, each of
//         which adds up all N rows.
// Change: split-K (K is the summed dimension, here the N rows): SPLITS blocks share a tile. Each
//         adds up LENGTH rows, and writes its sums to scratch. A second kernel adds these up in a
//         fixed order, so that every run gives the same bits.
// Expect: blocks for every SM. The scratch is written and read once: SPLITS * 8 bytes per weight,
//         little beside N multiply-adds.
// Needs:  C % vector == 0; OC % vector == 0
// Define: EACH = 8; THREADS = 16; TILE = EACH * THREADS; DEPTH = 16;
//         TILES = ceil_div(C, TILE) * ceil_div(OC, TILE);
//         SPLITS = max(1, min(ceil_div(N, 128), 4 * multiprocessors // TILES));
//         LENGTH = ceil_div(N, SPLITS)
// Launch: matmul_backward_weight<<<(ceil_div(C, TILE), ceil_div(OC, TILE), SPLITS),
//         THREADS * THREADS>>>
// Launch: matmul_backward_weight_finish<<<ceil_div(OC * C, 4 * 256), 256>>>
// Scratch: float32 partial[SPLITS, OC, C]
// After:  4
// Left:   float32 multiply-adds. Tensor cores multiply matrices of 16-bit elements -> 16bit rung 6.
//         In float32, loads and multiply-adds alternate instead of overlapping -> float32 rung 6.

#include "portable.cuh"

struct alignas(16) Floats { float at[4]; };  // one 16-byte load or store

// Copies a tile of `matrix` (rows, columns) at (row, column); zeros outside it.
__device__ __forceinline__ void load_tile(float (&tile)[DEPTH][TILE], const real* matrix, int row,
                                          int column, int rows, int columns) {
#pragma unroll
    for (int t = threadIdx.x * VECTOR; t < TILE * DEPTH; t += THREADS * THREADS * VECTOR) {
        int r = row + t / TILE, c = column + t % TILE;
        Vec v = {};
        if (r < rows && c < columns) v = load_vec(matrix + (size_t)r * columns + c);
        for (int j = 0; j < VECTOR; j += 4) {
            Floats four = {to_float(v[j]), to_float(v[j + 1]), to_float(v[j + 2]),
                           to_float(v[j + 3])};
            *reinterpret_cast<Floats*>(&tile[t / TILE][t % TILE + j]) = four;
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

extern "C" __global__ void __launch_bounds__(THREADS * THREADS) matmul_backward_weight(
    float* __restrict__ dweight,    // (OC, C)  accumulates
    const real* __restrict__ dout,  // (N, OC)
    const real* __restrict__ inp,   // (N, C)
    int N, int C, int OC,
    float* __restrict__ partial) {  // (SPLITS, OC, C)  sums over the rows of each split
    __shared__ alignas(16) float a[DEPTH][TILE];  // (row of dout, row of the tile)
    __shared__ alignas(16) float b[DEPTH][TILE];  // (row of inp, column of the tile)
    int x = threadIdx.x % THREADS, y = threadIdx.x / THREADS;
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;  // where the block's tile begins
    int first = blockIdx.z * LENGTH, end = min(first + LENGTH, N);  // its rows of dout and inp

    float sums[EACH][EACH] = {};
    for (int start = first; start < end; start += DEPTH) {
        load_tile(a, dout, start, row, end, OC);
        load_tile(b, inp, start, column, end, C);
        __syncthreads();  // the tiles are complete before any thread reads them
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            float as[EACH], bs[EACH];
            load_factors(as, a[k], y);
            load_factors(bs, b[k], x);
            for (int i = 0; i < EACH; i++) {
                for (int j = 0; j < EACH; j++) {
                    sums[i][j] += as[i] * bs[j];
                }
            }
        }
        __syncthreads();  // all have read the tiles before the next ones overwrite them
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
