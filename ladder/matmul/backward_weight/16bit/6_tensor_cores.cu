// matmul backward_weight, 16bit rung 6: tensor cores with wmma
// Before: rung 5 computes with float32 multiply-adds, one product per lane and instruction.
//         matmul.backward_input 16bit rung 5 multiplies on tensor cores, units that multiply small
//         matrices.
// Change: the product of matmul.backward_input 16bit rung 5. With one instruction (nvcuda::wmma), a
//         warp multiplies two 16 x 16 matrices of 16-bit elements, and accumulates in float32. A
//         warp has 4 x 2 such matrices of the block's 128 x 128 outputs. Here the sum runs over the
//         rows of both factors, and is split as in rung 5.
// Expect: an order of magnitude faster. wmma does not document which lane holds which element of a
//         matrix, so the results pass through shared memory, where bounds can be checked.
// Needs:  real in (float16, bfloat16); sm >= 80 or sm >= 70 and real == float16; warp == 32;
//         C % vector == 0; OC % vector == 0
// Define: TILE = 128; DEPTH = 32; WARPS = 8;
//         TILES = ceil_div(C, TILE) * ceil_div(OC, TILE);
//         SPLITS = max(1, min(ceil_div(N, 128), 4 * multiprocessors // TILES));
//         LENGTH = ceil_div(N, SPLITS)
// Launch: matmul_backward_weight<<<(ceil_div(C, TILE), ceil_div(OC, TILE), SPLITS), WARPS * warp>>>
// Launch: matmul_backward_weight_finish<<<ceil_div(OC * C, 4 * 256), 256>>>
// Scratch: float32 partial[SPLITS, OC, C]
// After:  matmul.backward_input 16bit-5
// Left:   the tensor cores starve for data while the next tiles are loaded -> rung 7.

#include <mma.h>

#include "portable.cuh"

using namespace nvcuda;

struct alignas(16) Floats { float at[4]; };  // one 16-byte load or store

constexpr int ROWS = 4, COLUMNS = 2;  // 16 x 16 matrices of a warp; the warps form a 2 x 4 grid
constexpr int STRIDE = TILE + 8;      // padded: 8 rows of a tile begin in different banks
constexpr int PATCH = 16 + 4;         // padded row of 16 results, for the same reason

// Copies a tile of `matrix` (rows, columns) at (row, column); zeros outside it.
__device__ __forceinline__ void load_tile(real* tile, const real* matrix, int row, int column,
                                          int rows, int columns) {
#pragma unroll
    for (int t = threadIdx.x * VECTOR; t < TILE * DEPTH; t += WARPS * WARP_SIZE * VECTOR) {
        int r = row + t / TILE, c = column + t % TILE;
        Vec v = {};
        if (r < rows && c < columns) v = load_vec(matrix + (size_t)r * columns + c);
        store_vec(tile + t / TILE * STRIDE + t % TILE, v);
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE) matmul_backward_weight(
    float* __restrict__ dweight,    // (OC, C)  accumulates
    const real* __restrict__ dout,  // (N, OC)
    const real* __restrict__ inp,   // (N, C)
    int N, int C, int OC,
    float* __restrict__ partial) {  // (SPLITS, OC, C)  sums over the rows of each split
    __shared__ alignas(32) real a[DEPTH * STRIDE];  // (row of dout, row of the tile)
    __shared__ alignas(32) real b[DEPTH * STRIDE];  // (row of inp, column of the tile)
    __shared__ alignas(32) float patches[WARPS * 16 * PATCH];  // 16 x 16 results of each warp
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;   // where the block's tile begins
    int first = blockIdx.z * LENGTH, end = min(first + LENGTH, N);  // its rows of dout and inp
    int y = warp_id() / 4 * ROWS * 16, x = warp_id() % 4 * COLUMNS * 16;  // the warp's, within it

    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[ROWS][COLUMNS];
    for (int i = 0; i < ROWS; i++) {
        for (int j = 0; j < COLUMNS; j++) {
            wmma::fill_fragment(sums[i][j], 0.0f);
        }
    }
    for (int start = first; start < end; start += DEPTH) {
        load_tile(a, dout, start, row, end, OC);
        load_tile(b, inp, start, column, end, C);
        __syncthreads();  // the tiles are complete before any warp reads them
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            wmma::fragment<wmma::matrix_b, 16, 16, 16, real, wmma::row_major> bs[COLUMNS];
            for (int j = 0; j < COLUMNS; j++) {
                wmma::load_matrix_sync(bs[j], b + k * STRIDE + x + j * 16, STRIDE);
            }
            for (int i = 0; i < ROWS; i++) {
                wmma::fragment<wmma::matrix_a, 16, 16, 16, real, wmma::col_major> as;
                wmma::load_matrix_sync(as, a + k * STRIDE + y + i * 16, STRIDE);
                for (int j = 0; j < COLUMNS; j++) {
                    wmma::mma_sync(sums[i][j], as, bs[j], sums[i][j]);
                }
            }
        }
        __syncthreads();  // all have read the tiles before the next ones overwrite them
    }

    float* patch = patches + warp_id() * 16 * PATCH;
    int lane_row = lane_id() / 2, lane_column = lane_id() % 2 * 8;  // of 16 x 16 results
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            wmma::store_matrix_sync(patch, sums[i][j], PATCH, wmma::mem_row_major);
            __syncwarp();  // the results are in shared memory before other lanes read them
            int r = row + y + i * 16 + lane_row, c = column + x + j * 16 + lane_column;
            if (r < OC && c < C) {
                const Floats* from =
                    reinterpret_cast<const Floats*>(patch + lane_row * PATCH + lane_column);
                Floats* to = reinterpret_cast<Floats*>(
                    partial + ((size_t)blockIdx.z * OC + r) * C + c);
                to[0] = from[0];
                to[1] = from[1];
            }
            __syncwarp();  // all lanes have read them before the next ones overwrite them
        }
    }
}

// Adds the SPLITS partial sums to dweight; a thread adds four neighbours.
extern "C" __global__ void matmul_backward_weight_finish(
    float* __restrict__ dweight, int N, int C, int OC, const float* __restrict__ partial) {
    size_t index = ((size_t)blockIdx.x * 256 + threadIdx.x) * 4, size = (size_t)OC * C;
    if (index >= size) return;
    Floats* to = reinterpret_cast<Floats*>(dweight + index);
    Floats sum = *to;
    for (int split = 0; split < SPLITS; split++) {
        Floats four = *reinterpret_cast<const Floats*>(partial + split * size + index);
        for (int k = 0; k < 4; k++) {
            sum.at[k] += four.at[k];
        }
    }
    *to = sum;
}
