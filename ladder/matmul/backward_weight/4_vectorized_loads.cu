// matmul backward_weight, rung 4: vectorized (128-bit) loads
// Before: rung 3 loads one element at a time, from memory and from shared memory.
// Change: a thread copies VECTOR neighbouring elements with one load of 16 bytes. A thread's
//         outputs are groups of four neighbours, whose factors come from shared memory 16 bytes at
//         a time.
// Expect: a quarter of the load instructions, so that the multiply-adds set the pace where there
//         are enough blocks.
// Needs:  C % vector == 0; OC % vector == 0
// Define: EACH = 8; THREADS = 16; TILE = EACH * THREADS; DEPTH = 16
// Launch: matmul_backward_weight<<<(ceil_div(C, TILE), ceil_div(OC, TILE)), THREADS * THREADS>>>
// After:  3
// Left:   a weight of 768 x 768 has 36 tiles; most SMs (streaming multiprocessors) idle -> rung 5.

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
    int N, int C, int OC) {
    __shared__ alignas(16) float a[DEPTH][TILE];  // (row of dout, row of the tile)
    __shared__ alignas(16) float b[DEPTH][TILE];  // (row of inp, column of the tile)
    int x = threadIdx.x % THREADS, y = threadIdx.x / THREADS;
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;  // where the block's tile begins

    float sums[EACH][EACH] = {};
    for (int start = 0; start < N; start += DEPTH) {
        load_tile(a, dout, start, row, N, OC);
        load_tile(b, inp, start, column, N, C);
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
            Floats* to = reinterpret_cast<Floats*>(dweight + (size_t)r * C + c);
            Floats four = *to;
            for (int k = 0; k < 4; k++) {
                four.at[k] += sums[i][j + k];
            }
            *to = four;
        }
    }
}
