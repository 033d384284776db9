// matmul backward_input, float32 rung 5: double buffering in shared memory and registers
// Before: rung 4 loads tiles, waits, multiplies, waits, and only then loads the next tiles. 16bit
//         rungs 5 to 14 avoid this, but with tensor cores, which do not multiply float32 elements.
// Change: 16bit rung 6's double buffering, on rung 4. A thread loads its share of the next tiles
//         into registers. When the present tiles are nearly used up, it stores the share to the
//         second pair of tiles in shared memory. The factors of the next feature are loaded while
//         those of this one are multiplied.
// Expect: no multiply-add waits for a load. There is one barrier per step instead of two, and the
//         SM's other block multiplies meanwhile. Bound by float32 arithmetic.
// Needs:  real == float32; C % vector == 0; OC % vector == 0
// Define: EACH = 8; THREADS = 16; TILE = EACH * THREADS; DEPTH = 16
// Launch: matmul_backward_input<<<(ceil_div(C, TILE), ceil_div(N, TILE)), THREADS * THREADS>>>
// After:  4
// Left:   where results are few, tiles of 128 x 128 are few too, and do not fill a wave -> rung 6.

#include "portable.cuh"

struct alignas(16) Floats { float at[4]; };              // one 16-byte load from shared memory
struct alignas(4 * sizeof(real)) Reals { real at[4]; };  // one vector store

constexpr int SHARE = TILE * DEPTH / (THREADS * THREADS * VECTOR);  // vectors of a tile per thread

// Loads this thread's share of the tile of `dout` (N, OC) at `row` and feature `start`.
__device__ __forceinline__ void load_dout(Vec (&share)[SHARE], const real* dout, int row, int start,
                                          int N, int OC) {
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
        int r = row + s * (TILE / SHARE) + threadIdx.x * VECTOR / DEPTH;
        int k = start + threadIdx.x * VECTOR % DEPTH;
        share[s] = {};  // zeros outside the matrix
        if (r < N && k < OC) share[s] = load_vec(dout + (size_t)r * OC + k);
    }
}

// Writes the share to shared memory, transposed.
__device__ __forceinline__ void store_dout(float (&tile)[DEPTH][TILE + 4],
                                           const Vec (&share)[SHARE]) {
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
        int r = s * (TILE / SHARE) + threadIdx.x * VECTOR / DEPTH;
        int k = threadIdx.x * VECTOR % DEPTH;
        for (int j = 0; j < VECTOR; j++) {
            tile[k + j][r] = to_float(share[s][j]);
        }
    }
}

// Loads this thread's share of the tile of `weight` (OC, C) at feature `start` and `column`.
__device__ __forceinline__ void load_weight(Vec (&share)[SHARE], const real* weight, int start,
                                            int column, int OC, int C) {
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
        int k = start + threadIdx.x / THREADS;
        int c = column + (s * THREADS + threadIdx.x % THREADS) * VECTOR;
        share[s] = {};  // zeros outside the matrix
        if (k < OC && c < C) share[s] = load_vec(weight + (size_t)k * C + c);
    }
}

// Writes the share to shared memory as it is.
__device__ __forceinline__ void store_weight(float (&tile)[DEPTH][TILE + 4],
                                             const Vec (&share)[SHARE]) {
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
        int k = threadIdx.x / THREADS, c = (s * THREADS + threadIdx.x % THREADS) * VECTOR;
        for (int j = 0; j < VECTOR; j += 4) {
            Floats four = {to_float(share[s][j]), to_float(share[s][j + 1]),
                           to_float(share[s][j + 2]), to_float(share[s][j + 3])};
            *reinterpret_cast<Floats*>(&tile[k][c + j]) = four;
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

// The launch bounds limit registers so that two blocks fit on an SM.
extern "C" __global__ void __launch_bounds__(THREADS * THREADS, 2) matmul_backward_input(
    real* __restrict__ dinp,          // (N, C)
    const real* __restrict__ dout,    // (N, OC)
    const real* __restrict__ weight,  // (OC, C)
    int N, int C, int OC) {
    // Double buffers: one tile is multiplied while the other is filled. Four padding columns: rows
    // begin at multiples of 16 bytes. The stores of a transposed copy take two passes.
    __shared__ alignas(16) float a[2][DEPTH][TILE + 4];  // (feature, row of the tile)     of dout
    __shared__ alignas(16) float b[2][DEPTH][TILE + 4];  // (feature, column of the tile)  of weight
    int x = threadIdx.x % THREADS, y = threadIdx.x / THREADS;
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;  // where the block's tile begins

    float sums[EACH][EACH] = {};
    Vec next_a[SHARE], next_b[SHARE];
    load_dout(next_a, dout, row, 0, N, OC);
    load_weight(next_b, weight, 0, column, OC, C);
    store_dout(a[0], next_a);
    store_weight(b[0], next_b);
    __syncthreads();  // the tiles are complete before any thread reads them
    float as[2][EACH], bs[2][EACH];  // factors of this feature, and of the next
    load_factors(as[0], a[0][0], y);
    load_factors(bs[0], b[0][0], x);
    for (int next = DEPTH, turn = 0; next < OC + DEPTH; next += DEPTH) {
        // Past the last feature these are zeros, which are never multiplied.
        load_dout(next_a, dout, row, next, N, OC);
        load_weight(next_b, weight, next, column, OC, C);
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            if (k == DEPTH - 1) {
                turn ^= 1;
                store_dout(a[turn], next_a);
                store_weight(b[turn], next_b);
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
            if (c >= C) break;
            Reals four;
            for (int k = 0; k < 4; k++) {
                four.at[k] = to_real(sums[i][j + k]);
            }
            *reinterpret_cast<Reals*>(dinp + (size_t)r * C + c) = four;
        }
    }
}
