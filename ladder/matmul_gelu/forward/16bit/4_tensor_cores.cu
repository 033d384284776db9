// matmul_gelu forward, 16bit rung 4: tensor cores with wmma
// Before: rung 3 computes with float32 multiply-adds, one product per lane and instruction.
// Change: the product of matmul.forward 16bit rung 6: nvcuda::wmma multiplies tiles of 16-bit
//         elements on tensor cores (units that multiply small matrices), with double buffering. The
//         results pass through shared memory to get their bias, and get their gelu there.
// Expect: an order of magnitude faster, and now the fused gelu matters. The product takes so little
//         time that loading pre again, and storing out, would add a good part of it.
// Needs:  real in (float16, bfloat16); sm >= 80 or sm >= 70 and real == float16; warp == 32;
//         C % vector == 0; OC % vector == 0
// Define: TILE = 128; DEPTH = 32; WARPS = 8; BLOCKS = max(1, min(2, shared_bytes // 40960))
// Launch: matmul_gelu_forward<<<(ceil_div(OC, TILE), ceil_div(N, TILE)), WARPS * warp>>>
// Rounds: pre, of which it takes the gelu
// After:  matmul.forward 16bit-6
// Left:   tiles pass through registers on their way to shared memory, and wmma reads each element
//         there several times. matmul.forward avoids both from 16bit rung 7 on -> rung 5.

#include <mma.h>

#include "fast_math.cuh"
#include "portable.cuh"

using namespace nvcuda;

constexpr int ROWS = 4, COLUMNS = 2;  // 16 x 16 matrices of a warp; the warps form a 2 x 4 grid
constexpr int STRIDE = DEPTH + 8;     // padded: 8 rows of a tile begin in different banks
constexpr int PATCH = 16 + 4;         // padded row of 16 results, for the same reason
constexpr int SHARE = TILE * DEPTH / (WARPS * WARP_SIZE * VECTOR);  // vectors of a tile per thread

constexpr float SCALE = 0.7978845608f;  // sqrt(2 / pi)
constexpr float CUBIC = 0.044715f;
constexpr float LINEAR = -2.0f * LOG2_E * SCALE;  // exp(-2u) = 2^(LINEAR * (x + CUBIC * x^3))

// (1 + tanh(u)) / 2 is the logistic function of 2u. If the power overflows to infinity, the
// quotient is 0, which is the right limit.
__device__ __forceinline__ float gelu(float x) {
    float power = fast_exp2(x * (LINEAR + LINEAR * CUBIC * x * x));  // exp(-2u)
    return __fdividef(x, 1.0f + power);
}

// Loads this thread's share of the tile of `matrix` (rows, C) at `row` and channel `start`.
__device__ __forceinline__ void load_tile(Vec (&share)[SHARE], const real* matrix, int row,
                                          int start, int rows, int C) {
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
        int t = (s * WARPS * WARP_SIZE + threadIdx.x) * VECTOR;
        int y = t / DEPTH, k = t % DEPTH;
        share[s] = {};  // zeros outside the matrix
        if (row + y < rows && start + k < C) {
            share[s] = load_vec(matrix + (size_t)(row + y) * C + start + k);
        }
    }
}

__device__ __forceinline__ void store_tile(real* tile, const Vec (&share)[SHARE]) {
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
        int t = (s * WARPS * WARP_SIZE + threadIdx.x) * VECTOR;
        store_vec(tile + t / DEPTH * STRIDE + t % DEPTH, share[s]);
    }
}

// The launch bounds limit registers so that BLOCKS blocks fit on an SM.
extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE, BLOCKS) matmul_gelu_forward(
    real* __restrict__ out,           // (N, OC)
    real* __restrict__ pre,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC)
    int N, int C, int OC) {
    // Double buffers: one tile is multiplied while the other is filled.
    __shared__ alignas(32) real a[2][TILE * STRIDE];          // (row of the tile, channel) of inp
    __shared__ alignas(32) real b[2][TILE * STRIDE];          // (column, channel) of weight
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;  // where the block's tile begins
    int y = warp_id() / 4 * ROWS * 16, x = warp_id() % 4 * COLUMNS * 16;  // the warp's, within it

    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[ROWS][COLUMNS];
    for (int i = 0; i < ROWS; i++) {
        for (int j = 0; j < COLUMNS; j++) {
            wmma::fill_fragment(sums[i][j], 0.0f);
        }
    }
    Vec next_a[SHARE], next_b[SHARE];
    load_tile(next_a, inp, row, 0, N, C);
    load_tile(next_b, weight, column, 0, OC, C);
    for (int start = 0, turn = 0; start < C; start += DEPTH, turn ^= 1) {
        store_tile(a[turn], next_a);
        store_tile(b[turn], next_b);
        __syncthreads();  // all threads wrote these tiles and read the pair filled next
        if (start + DEPTH < C) {
            load_tile(next_a, inp, row, start + DEPTH, N, C);
            load_tile(next_b, weight, column, start + DEPTH, OC, C);
        }
#pragma unroll 1  // unrolling would take more registers than BLOCKS blocks have
        for (int k = 0; k < DEPTH; k += 16) {
            wmma::fragment<wmma::matrix_b, 16, 16, 16, real, wmma::col_major> bs[COLUMNS];
            for (int j = 0; j < COLUMNS; j++) {
                wmma::load_matrix_sync(bs[j], b[turn] + (x + j * 16) * STRIDE + k, STRIDE);
            }
            for (int i = 0; i < ROWS; i++) {
                wmma::fragment<wmma::matrix_a, 16, 16, 16, real, wmma::row_major> as;
                wmma::load_matrix_sync(as, a[turn] + (y + i * 16) * STRIDE + k, STRIDE);
                for (int j = 0; j < COLUMNS; j++) {
                    wmma::mma_sync(sums[i][j], as, bs[j], sums[i][j]);
                }
            }
        }
    }

    __syncthreads();  // all have read the last tiles before results overwrite them
    float* patch = reinterpret_cast<float*>(a[0]) + warp_id() * 16 * PATCH;  // a warp's results
    int lane_row = lane_id() / 2, lane_column = lane_id() % 2 * VECTOR;      // of 16 x 16 results
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            wmma::store_matrix_sync(patch, sums[i][j], PATCH, wmma::mem_row_major);
            __syncwarp();  // the results are in shared memory before other lanes read them
            int r = row + y + i * 16 + lane_row, c = column + x + j * 16 + lane_column;
            if (r < N && c < OC) {
                Vec v = load_vec(bias + c), gelus;
                for (int k = 0; k < VECTOR; k++) {
                    v[k] = to_real(patch[lane_row * PATCH + lane_column + k] + to_float(v[k]));
                    gelus[k] = to_real(gelu(to_float(v[k])));
                }
                store_vec(pre + (size_t)r * OC + c, v);
                store_vec(out + (size_t)r * OC + c, gelus);
            }
            __syncwarp();  // all lanes have read them before the next ones overwrite them
        }
    }
}
