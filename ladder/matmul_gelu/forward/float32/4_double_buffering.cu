// matmul_gelu forward, float32 rung 4: double buffering in shared memory and registers
// Before: rung 3 loads tiles, waits, multiplies, waits, and only then loads the next tiles.
//         matmul.forward float32 rung 5 has double buffering.
// Change: the product of matmul.forward float32 rung 5, with gelu, and with the multiply-adds in
//         the serpentine order of matmul.forward float32 rung 7. A thread loads its share of the
//         next tiles into registers, and later stores it to a second pair of tiles in shared
//         memory. The factors of the next channel are loaded while those of this one are
//         multiplied.
// Expect: no multiply-add waits for a load. Two blocks fit on an SM (streaming multiprocessor), and
//         after the first of many they are out of step: while one computes its gelus, the other
//         multiplies.
// Needs:  real == float32; C % vector == 0; OC % vector == 0
// Define: EACH = 8; THREADS = 16; TILE = EACH * THREADS; DEPTH = 16
// Launch: matmul_gelu_forward<<<(ceil_div(OC, TILE), ceil_div(N, TILE)), THREADS * THREADS>>>
// Rounds: pre, of which it takes the gelu
// After:  matmul.forward float32-5
// Left:   float32 multiply-adds.

#include "fast_math.cuh"
#include "portable.cuh"

constexpr float SCALE = 0.7978845608f;  // sqrt(2 / pi)
constexpr float CUBIC = 0.044715f;
constexpr float LINEAR = -2.0f * LOG2_E * SCALE;  // exp(-2u) = 2^(LINEAR * (x + CUBIC * x^3))

// (1 + tanh(u)) / 2 is the logistic function of 2u. If the power overflows to infinity, the
// quotient is 0, which is the right limit.
__device__ __forceinline__ float gelu(float x) {
    float power = fast_exp2(x * (LINEAR + LINEAR * CUBIC * x * x));  // exp(-2u)
    return __fdividef(x, 1.0f + power);
}

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
extern "C" __global__ void __launch_bounds__(THREADS * THREADS, 2) matmul_gelu_forward(
    real* __restrict__ out,           // (N, OC)
    real* __restrict__ pre,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC)
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
                for (int n = 0; n < EACH; n++) {
                    int j = i % 2 ? EACH - 1 - n : n;  // serpentine order
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
            Reals four = *reinterpret_cast<const Reals*>(bias + c), gelus;
            for (int k = 0; k < 4; k++) {
                four.at[k] = to_real(sums[i][j + k] + to_float(four.at[k]));
                gelus.at[k] = to_real(gelu(to_float(four.at[k])));
            }
            *reinterpret_cast<Reals*>(pre + (size_t)r * OC + c) = four;
            *reinterpret_cast<Reals*>(out + (size_t)r * OC + c) = gelus;
        }
    }
}
