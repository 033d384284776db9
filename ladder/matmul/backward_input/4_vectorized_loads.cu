// matmul backward_input, rung 4: vectorized (128-bit) loads
// Before: rung 3 loads one element at a time, from memory and from shared memory.
// Change: a thread copies VECTOR neighbouring elements with one load of 16 bytes. A thread's
//         outputs are groups of four neighbours, whose factors come from shared memory 16 bytes at
//         a time.
// Expect: a quarter of the load instructions, so that the multiply-adds set the pace: bound by
//         float32 arithmetic.
// Needs:  C % vector == 0; OC % vector == 0
// Define: EACH = 8; THREADS = 16; TILE = EACH * THREADS; DEPTH = 16
// Launch: matmul_backward_input<<<(ceil_div(C, TILE), ceil_div(N, TILE)), THREADS * THREADS>>>
// After:  3
// Left:   float32 multiply-adds. Tensor cores multiply matrices of 16-bit elements -> 16bit rung 5.
//         In float32, loads and multiply-adds alternate instead of overlapping -> float32 rung 5.

#include "portable.cuh"

struct alignas(16) Floats { float at[4]; };              // one 16-byte load from shared memory
struct alignas(4 * sizeof(real)) Reals { real at[4]; };  // one vector store

// Copies a tile of `matrix` (rows, columns) at (row, column), transposed; zeros outside it.
__device__ __forceinline__ void load_transposed(float (&tile)[DEPTH][TILE + 4], const real* matrix,
                                                int row, int column, int rows, int columns) {
#pragma unroll
    for (int t = threadIdx.x * VECTOR; t < TILE * DEPTH; t += THREADS * THREADS * VECTOR) {
        int r = row + t / DEPTH, c = column + t % DEPTH;
        Vec v = {};
        if (r < rows && c < columns) v = load_vec(matrix + (size_t)r * columns + c);
        for (int j = 0; j < VECTOR; j++) {
            tile[t % DEPTH + j][t / DEPTH] = to_float(v[j]);
        }
    }
}

// The same, not transposed.
__device__ __forceinline__ void load_tile(float (&tile)[DEPTH][TILE + 4], const real* matrix,
                                          int row, int column, int rows, int columns) {
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

// Loads this thread's EACH factors of one feature: four neighbours, and four half a tile later.
__device__ __forceinline__ void load_factors(float (&to)[EACH], const float* from, int thread) {
    for (int half = 0; half < 2; half++) {
        Floats four = *reinterpret_cast<const Floats*>(from + half * TILE / 2 + thread * 4);
        for (int j = 0; j < 4; j++) {
            to[half * 4 + j] = four.at[j];
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS * THREADS) matmul_backward_input(
    real* __restrict__ dinp,          // (N, C)
    const real* __restrict__ dout,    // (N, OC)
    const real* __restrict__ weight,  // (OC, C)
    int N, int C, int OC) {
    // Four padding columns: rows begin at multiples of 16 bytes. The copy's stores take two passes.
    __shared__ alignas(16) float a[DEPTH][TILE + 4];  // (feature, row of the tile)     of dout
    __shared__ alignas(16) float b[DEPTH][TILE + 4];  // (feature, column of the tile)  of weight
    int x = threadIdx.x % THREADS, y = threadIdx.x / THREADS;
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;  // where the block's tile begins

    float sums[EACH][EACH] = {};
    for (int start = 0; start < OC; start += DEPTH) {
        load_transposed(a, dout, row, start, N, OC);
        load_tile(b, weight, start, column, OC, C);
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
        if (r >= N) break;
#pragma unroll
        for (int j = 0; j < EACH; j += 4) {
            int c = column + j / 4 * TILE / 2 + x * 4;
            if (c >= C) break;
            Reals four;
            for (int k = 0; k < 4; k++) {
                four.at[k] = to_real(sums[i][j + k]);
            }
            *reinterpret_cast<Reals*>(dinp + (size_t)r * C + c) = four;
        }
    }
}
