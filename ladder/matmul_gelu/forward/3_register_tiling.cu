// matmul_gelu forward, rung 3: register tiling and vectorized loads
// Before: rung 2 loads two elements from shared memory for each multiply-add.
// Change: the product of matmul.forward rung 4: a thread computes EACH * EACH outputs, and loads 16
//         bytes at a time. The gelu has one exponential instead of tanh, as in gelu.forward rung 3.
// Expect: bound by float32 multiply-adds. A thread computes its EACH * EACH gelus together at the
//         end of its work, where only the next block waits for them.
// Needs:  C % vector == 0; OC % vector == 0
// Define: EACH = 8; THREADS = 16; TILE = EACH * THREADS; DEPTH = 16
// Launch: matmul_gelu_forward<<<(ceil_div(OC, TILE), ceil_div(N, TILE)), THREADS * THREADS>>>
// Rounds: pre, of which it takes the gelu
// After:  matmul.forward 4
// Left:   float32 multiply-adds. Tensor cores multiply matrices of 16-bit elements -> 16bit rung 5.
//         In float32, loads and multiply-adds alternate instead of overlapping -> float32 rung 4.

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

// Copies a tile of `matrix` (rows, C) at `row` and channel `start`, transposed; zeros outside it.
__device__ __forceinline__ void load_tile(float (&tile)[DEPTH][TILE + 4], const real* matrix,
                                          int row, int start, int rows, int C) {
#pragma unroll
    for (int t = threadIdx.x * VECTOR; t < TILE * DEPTH; t += THREADS * THREADS * VECTOR) {
        int y = t / DEPTH, k = t % DEPTH;
        bool inside = row + y < rows && start + k < C;
        Vec v = {};
        if (inside) v = load_vec(matrix + (size_t)(row + y) * C + start + k);
        for (int j = 0; j < VECTOR; j++) {
            tile[k + j][y] = to_float(v[j]);
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

extern "C" __global__ void __launch_bounds__(THREADS * THREADS) matmul_gelu_forward(
    real* __restrict__ out,           // (N, OC)
    real* __restrict__ pre,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC)
    int N, int C, int OC) {
    // Four padding columns: rows begin at multiples of 16 bytes. The copy's stores take two passes.
    __shared__ alignas(16) float a[DEPTH][TILE + 4];  // (channel, row of the tile)     of inp
    __shared__ alignas(16) float b[DEPTH][TILE + 4];  // (channel, column of the tile)  of weight
    int x = threadIdx.x % THREADS, y = threadIdx.x / THREADS;
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;  // where the block's tile begins

    float sums[EACH][EACH] = {};
    for (int start = 0; start < C; start += DEPTH) {
        load_tile(a, inp, row, start, N, C);
        load_tile(b, weight, column, start, OC, C);
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
