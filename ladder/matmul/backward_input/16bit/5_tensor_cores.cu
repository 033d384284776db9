// matmul backward_input, 16bit rung 5: tensor cores with wmma
// Before: rung 4 computes with float32 multiply-adds, one product per lane and instruction.
//         matmul.forward 16bit rung 5 multiplies on tensor cores, units that multiply small
//         matrices.
// Change: the product of matmul.forward 16bit rung 5. With one instruction (nvcuda::wmma), a warp
//         multiplies two 16 x 16 matrices of 16-bit elements, and accumulates in float32. A warp
//         has 4 x 2 such matrices of the block's 128 x 128 outputs. Here the sum runs over the rows
//         of weight, so a tile of weight is (feature, column), and its fragments are row_major.
// Expect: an order of magnitude faster. wmma does not document which lane holds which element of a
//         matrix, so the results pass through shared memory before they are rounded.
// Needs:  real in (float16, bfloat16); sm >= 80 or sm >= 70 and real == float16; warp == 32;
//         C % vector == 0; OC % vector == 0
// Define: TILE = 128; DEPTH = 32; WARPS = 8
// Launch: matmul_backward_input<<<(ceil_div(C, TILE), ceil_div(N, TILE)), WARPS * warp>>>
// After:  matmul.forward 16bit-5
// Left:   the tensor cores starve for data while the next tiles are loaded -> rung 6.

#include <mma.h>

#include "portable.cuh"

using namespace nvcuda;

constexpr int ROWS = 4, COLUMNS = 2;  // 16 x 16 matrices of a warp; the warps form a 2 x 4 grid
constexpr int STRIDE_A = DEPTH + 8;   // padded: 8 rows of a tile begin in different banks
constexpr int STRIDE_B = TILE + 8;
constexpr int PATCH = 16 + 4;         // padded row of 16 results, for the same reason

// Copies a tile of `matrix` (rows, columns) at (row, column); zeros outside it. WIDTH: columns of
// the tile.
template <int WIDTH>
__device__ __forceinline__ void load_tile(real* tile, const real* matrix, int row, int column,
                                          int rows, int columns) {
#pragma unroll
    for (int t = threadIdx.x * VECTOR; t < TILE * DEPTH; t += WARPS * WARP_SIZE * VECTOR) {
        int r = row + t / WIDTH, c = column + t % WIDTH;
        Vec v = {};
        if (r < rows && c < columns) v = load_vec(matrix + (size_t)r * columns + c);
        store_vec(tile + t / WIDTH * (WIDTH + 8) + t % WIDTH, v);
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE) matmul_backward_input(
    real* __restrict__ dinp,          // (N, C)
    const real* __restrict__ dout,    // (N, OC)
    const real* __restrict__ weight,  // (OC, C)
    int N, int C, int OC) {
    __shared__ alignas(32) real a[TILE * STRIDE_A];   // (row of the tile, feature)     of dout
    __shared__ alignas(32) real b[DEPTH * STRIDE_B];  // (feature, column of the tile)  of weight
    __shared__ alignas(32) float patches[WARPS * 16 * PATCH];  // 16 x 16 results of each warp
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;   // where the block's tile begins
    int y = warp_id() / 4 * ROWS * 16, x = warp_id() % 4 * COLUMNS * 16;  // the warp's, within it

    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[ROWS][COLUMNS];
    for (int i = 0; i < ROWS; i++) {
        for (int j = 0; j < COLUMNS; j++) {
            wmma::fill_fragment(sums[i][j], 0.0f);
        }
    }
    for (int start = 0; start < OC; start += DEPTH) {
        load_tile<DEPTH>(a, dout, row, start, N, OC);
        load_tile<TILE>(b, weight, start, column, OC, C);
        __syncthreads();  // the tiles are complete before any warp reads them
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            wmma::fragment<wmma::matrix_b, 16, 16, 16, real, wmma::row_major> bs[COLUMNS];
            for (int j = 0; j < COLUMNS; j++) {
                wmma::load_matrix_sync(bs[j], b + k * STRIDE_B + x + j * 16, STRIDE_B);
            }
            for (int i = 0; i < ROWS; i++) {
                wmma::fragment<wmma::matrix_a, 16, 16, 16, real, wmma::row_major> as;
                wmma::load_matrix_sync(as, a + (y + i * 16) * STRIDE_A + k, STRIDE_A);
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
            if (r < N && c < C) {
                Vec v;
                for (int k = 0; k < VECTOR; k++) {
                    v[k] = to_real(patch[lane_row * PATCH + lane_column + k]);
                }
                store_vec(dinp + (size_t)r * C + c, v);
            }
            __syncwarp();  // all lanes have read them before the next ones overwrite them
        }
    }
}
