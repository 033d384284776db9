// matmul forward, 16bit rung 5: tensor cores with wmma
// Before: rung 4 computes with float32 multiply-adds, one product per lane and instruction.
// Change: tensor cores, units that multiply small matrices. With one instruction (nvcuda::wmma), a
//         warp multiplies two 16 x 16 matrices of 16-bit elements, and accumulates in float32.
//         Tiles stay in 16 bits. A warp has 4 x 2 such matrices of the block's 128 x 128 outputs.
// Expect: an order of magnitude faster. wmma does not document which lane holds which element of a
//         matrix, so the results pass through shared memory to get their bias.
// Needs:  real in (float16, bfloat16); sm >= 80 or sm >= 70 and real == float16; warp == 32;
//         C % vector == 0; OC % vector == 0
// Define: TILE = 128; DEPTH = 32; WARPS = 8
// Launch: matmul_forward<<<(ceil_div(OC, TILE), ceil_div(N, TILE)), WARPS * warp>>>
// After:  4
// Left:   the tensor cores starve for data while the next tiles are loaded -> rung 6.

#include <mma.h>

#include "portable.cuh"

using namespace nvcuda;

constexpr int ROWS = 4, COLUMNS = 2;  // 16 x 16 matrices of a warp; the warps form a 2 x 4 grid
constexpr int STRIDE = DEPTH + 8;     // padded: 8 rows of a tile begin in different banks
constexpr int PATCH = 16 + 4;         // padded row of 16 results, for the same reason

// Copies a tile of `matrix` (rows, C) at `row` and channel `start`; zeros outside it.
__device__ __forceinline__ void load_tile(real* tile, const real* matrix, int row, int start,
                                          int rows, int C) {
#pragma unroll
    for (int t = threadIdx.x * VECTOR; t < TILE * DEPTH; t += WARPS * WARP_SIZE * VECTOR) {
        int y = t / DEPTH, k = t % DEPTH;
        Vec v = {};
        if (row + y < rows && start + k < C) {
            v = load_vec(matrix + (size_t)(row + y) * C + start + k);
        }
        store_vec(tile + y * STRIDE + k, v);
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE) matmul_forward(
    real* __restrict__ out,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC), or null
    int N, int C, int OC) {
    __shared__ alignas(32) real a[TILE * STRIDE];  // (row of the tile, channel)     of inp
    __shared__ alignas(32) real b[TILE * STRIDE];  // (column of the tile, channel)  of weight
    __shared__ alignas(32) float patches[WARPS * 16 * PATCH];  // 16 x 16 results of each warp
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;   // where the block's tile begins
    int y = warp_id() / 4 * ROWS * 16, x = warp_id() % 4 * COLUMNS * 16;  // the warp's, within it

    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[ROWS][COLUMNS];
    for (int i = 0; i < ROWS; i++) {
        for (int j = 0; j < COLUMNS; j++) {
            wmma::fill_fragment(sums[i][j], 0.0f);
        }
    }
    for (int start = 0; start < C; start += DEPTH) {
        load_tile(a, inp, row, start, N, C);
        load_tile(b, weight, column, start, OC, C);
        __syncthreads();  // the tiles are complete before any warp reads them
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            wmma::fragment<wmma::matrix_b, 16, 16, 16, real, wmma::col_major> bs[COLUMNS];
            for (int j = 0; j < COLUMNS; j++) {
                wmma::load_matrix_sync(bs[j], b + (x + j * 16) * STRIDE + k, STRIDE);
            }
            for (int i = 0; i < ROWS; i++) {
                wmma::fragment<wmma::matrix_a, 16, 16, 16, real, wmma::row_major> as;
                wmma::load_matrix_sync(as, a + (y + i * 16) * STRIDE + k, STRIDE);
                for (int j = 0; j < COLUMNS; j++) {
                    wmma::mma_sync(sums[i][j], as, bs[j], sums[i][j]);
                }
            }
        }
        __syncthreads();  // all have read the tiles before the next ones overwrite them
    }

    float* patch = patches + warp_id() * 16 * PATCH;
    int lane_row = lane_id() / 2, lane_column = lane_id() % 2 * VECTOR;  // of 16 x 16 results
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
