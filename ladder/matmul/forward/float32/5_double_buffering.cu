// matmul forward, float32 rung 5: double buffering in shared memory and registers
// Before: rung 4 loads tiles, waits, multiplies, waits, and only then loads the next tiles. 16bit
//         rungs 5 to 16 avoid this, but with tensor cores, which do not multiply float32 elements.
// Change: 16bit rung 6's double buffering, on rung 4. A thread loads its share of the next tiles
//         into registers. When the present tiles are nearly used up, it stores the share to the
//         second pair of tiles in shared memory. The factors of the next channel are loaded while
//         those of this one are multiplied.
// Expect: no multiply-add waits for a load. There is one barrier per step instead of two, and the
//         SM's other block multiplies meanwhile. Bound by float32 arithmetic.
// Needs:  real == float32; C % vector == 0; OC % vector == 0
// Define: EACH = 8; THREADS = 16; TILE = EACH * THREADS; DEPTH = 16
// Launch: matmul_forward<<<(ceil_div(OC, TILE), ceil_div(N, TILE)), THREADS * THREADS>>>
// After:  4
// Left:   where results are few, tiles of 128 x 128 are few too, and do not fill a wave -> rung 6.

#include "portable.cuh"

struct alignas(16) Floats { float at[4]; };              // one 16-byte load from shared memory
struct alignas(4 * sizeof(real)) Reals { real at[4]; };  // one load of bias, or one store

constexpr int SHARE = TILE * DEPTH / (THREADS * THREADS * VECTOR);  // vectors of a tile per thread

// Loads this thread's share of the tile of `matrix` (rows, C) at `row` and channel `start`.
__device__ __forceinline__ void load_tile(Vec (&share)[SHARE], const real* matrix, int row,
                                          int rows, int start, int C) {
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
        int y = row + s * (TILE / SHARE) + threadIdx.x * VECTOR / DEPTH;
        int k = start + threadIdx.x * VECTOR % DEPTH;
        share[s] = {};  // zeros outside the matrix
        if (y < rows && k < C) share[s] = load_vec(matrix + (size_t)y * C + k);
    }
}

// Writes the share to shared memory, transposed.
__device__ __forceinline__ void store_tile(float (&tile)[DEPTH][TILE + 4],
                                           const Vec (&share)[SHARE]) {
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
        int y = s * (TILE / SHARE) + threadIdx.x * VECTOR / DEPTH;
        int k = threadIdx.x * VECTOR % DEPTH;
        for (int j = 0; j < VECTOR; j++) {
            tile[k + j][y] = to_float(share[s][j]);
        }
    }
}

// Loads this thread's EACH factors of one channel: four neighbours, and four half a tile later.
__device__ __forceinline__ void load_factors(float (&to)[EACH], const float* from, int thread) {
    for (int half = 0; half < 2; half++) {
        Floats four = *reinterpret_cast<const Floats*>(from + half * TILE / 2 + thread * 4);
        for (int j = 0; j < 4; j++) {
            to[half * 4 + j] = four.at[j];
        }
    }
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
    __shared__ alignas(16) float a[2][DEPTH][TILE + 4];  // (channel, row of the tile)     of inp
    __shared__ alignas(16) float b[2][DEPTH][TILE + 4];  // (channel, column of the tile)  of weight
    int x = threadIdx.x % THREADS, y = threadIdx.x / THREADS;
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;  // where the block's tile begins

    float sums[EACH][EACH] = {};
    Vec next_a[SHARE], next_b[SHARE];
    load_tile(next_a, inp, row, N, 0, C);
    load_tile(next_b, weight, column, OC, 0, C);
    store_tile(a[0], next_a);
    store_tile(b[0], next_b);
    __syncthreads();  // the tiles are complete before any thread reads them
    float as[2][EACH], bs[2][EACH];  // factors of this channel, and of the next
    load_factors(as[0], a[0][0], y);
    load_factors(bs[0], b[0][0], x);
    for (int next = DEPTH, turn = 0; next < C + DEPTH; next += DEPTH) {
        // Past the last channel these are zeros, which are never multiplied.
        load_tile(next_a, inp, row, N, next, C);
        load_tile(next_b, weight, column, OC, next, C);
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            if (k == DEPTH - 1) {
                turn ^= 1;
                store_tile(a[turn], next_a);
                store_tile(b[turn], next_b);
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
        if (r >= N) break;
#pragma unroll
        for (int j = 0; j < EACH; j += 4) {
            int c = column + j / 4 * TILE / 2 + x * 4;
            if (c >= OC) break;
            Reals four = {};
            if (bias) four = *reinterpret_cast<const Reals*>(bias + c);
            for (int k = 0; k < 4; k++) {
                four.at[k] = to_real(sums[i][j + k] + to_float(four.at[k]));
            }
            *reinterpret_cast<Reals*>(out + (size_t)r * OC + c) = four;
        }
    }
}
