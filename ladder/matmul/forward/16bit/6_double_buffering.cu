// matmul forward, 16bit rung 6: double buffering in shared memory
// Before: rung 5 loads tiles, waits, multiplies, waits, and only then loads the next tiles.
// Change: double buffering: two pairs of tiles in shared memory. A thread loads its share of the
//         next tiles into registers, then multiplies the present tiles, and then stores the share
//         to the other pair.
// Expect: loads from memory overlap with products; one barrier per step instead of two.
// Needs:  real in (float16, bfloat16); sm >= 80 or sm >= 70 and real == float16; warp == 32;
//         C % vector == 0; OC % vector == 0
// Define: TILE = 128; DEPTH = 32; WARPS = 8; BLOCKS = max(1, min(2, shared_bytes // 40960))
// Launch: matmul_forward<<<(ceil_div(OC, TILE), ceil_div(N, TILE)), WARPS * warp>>>
// After:  16bit-5
// Left:   tiles go through registers to shared memory. wmma reads each element there
//         several times. In bfloat16 it reads pairs of elements instead of using ldmatrix, as the
//         machine code (SASS) shows -> rung 7.

#include <mma.h>

#include "portable.cuh"

using namespace nvcuda;

constexpr int ROWS = 4, COLUMNS = 2;  // 16 x 16 matrices of a warp; the warps form a 2 x 4 grid
constexpr int STRIDE = DEPTH + 8;     // padded: 8 rows of a tile begin in different banks
constexpr int PATCH = 16 + 4;         // padded row of 16 results, for the same reason
constexpr int SHARE = TILE * DEPTH / (WARPS * WARP_SIZE * VECTOR);  // vectors of a tile per thread

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
extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE, BLOCKS) matmul_forward(
    real* __restrict__ out,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC), or null
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
                Vec v = {};
                if (bias) v = load_vec(bias + c);
                for (int k = 0; k < VECTOR; k++) {
                    v[k] = to_real(patch[lane_row * PATCH + lane_column + k] + to_float(v[k]));
                }
                store_vec(out + (size_t)r * OC + c, v);
            }
            __syncwarp();  // all lanes have read them before the next ones overwrite them
        }
    }
}
