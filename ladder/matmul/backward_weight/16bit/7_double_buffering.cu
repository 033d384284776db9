// matmul backward_weight, 16bit rung 7: double buffering in shared memory
// Before: rung 6 loads tiles, waits, multiplies, waits, and only then loads the next tiles.
// Change: double buffering: two pairs of tiles in shared memory. A thread loads its share of the
//         next tiles into registers, then multiplies the present tiles, and then stores the share
//         to the other pair.
// Expect: loads from memory overlap with products; one barrier per step instead of two.
// Needs:  real in (float16, bfloat16); sm >= 80 or sm >= 70 and real == float16; warp == 32;
//         C % vector == 0; OC % vector == 0
// Define: TILE = 128; DEPTH = 32; WARPS = 8; BLOCKS = max(1, min(2, shared_bytes // 40960));
//         TILES = ceil_div(C, TILE) * ceil_div(OC, TILE);
//         SPLITS = max(1, min(ceil_div(N, 128), 4 * multiprocessors // TILES));
//         LENGTH = ceil_div(N, SPLITS)
// Launch: matmul_backward_weight<<<(ceil_div(C, TILE), ceil_div(OC, TILE), SPLITS), WARPS * warp>>>
// Launch: matmul_backward_weight_finish<<<ceil_div(OC * C, 4 * 256), 256>>>
// Scratch: float32 partial[SPLITS, OC, C]
// After:  16bit-6
// Left:   tiles go through registers to shared memory. wmma reads each element there
//         several times. In bfloat16 it reads pairs of elements instead of using ldmatrix, as the
//         machine code (SASS) shows -> rung 8.

#include <mma.h>

#include "portable.cuh"

using namespace nvcuda;

struct alignas(16) Floats { float at[4]; };  // one 16-byte load or store

constexpr int ROWS = 4, COLUMNS = 2;  // 16 x 16 matrices of a warp; the warps form a 2 x 4 grid
constexpr int STRIDE = TILE + 8;      // padded: 8 rows of a tile begin in different banks
constexpr int PATCH = 16 + 4;         // padded row of 16 results, for the same reason
constexpr int SHARE = TILE * DEPTH / (WARPS * WARP_SIZE * VECTOR);  // vectors of a tile per thread

// Loads this thread's share of the tile of `matrix` (rows, columns) at (row, column).
__device__ __forceinline__ void load_tile(Vec (&share)[SHARE], const real* matrix, int row,
                                          int column, int rows, int columns) {
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
        int t = (s * WARPS * WARP_SIZE + threadIdx.x) * VECTOR;
        int r = row + t / TILE, c = column + t % TILE;
        share[s] = {};  // zeros outside the matrix
        if (r < rows && c < columns) share[s] = load_vec(matrix + (size_t)r * columns + c);
    }
}

__device__ __forceinline__ void store_tile(real* tile, const Vec (&share)[SHARE]) {
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
        int t = (s * WARPS * WARP_SIZE + threadIdx.x) * VECTOR;
        store_vec(tile + t / TILE * STRIDE + t % TILE, share[s]);
    }
}

// The launch bounds limit registers so that BLOCKS blocks fit on an SM.
extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE, BLOCKS) matmul_backward_weight(
    float* __restrict__ dweight,    // (OC, C)  accumulates
    const real* __restrict__ dout,  // (N, OC)
    const real* __restrict__ inp,   // (N, C)
    int N, int C, int OC,
    float* __restrict__ partial) {  // (SPLITS, OC, C)  sums over the rows of each split
    // Double buffers: one tile is multiplied while the other is filled.
    __shared__ alignas(32) real a[2][DEPTH * STRIDE];         // (row of dout, row of the tile)
    __shared__ alignas(32) real b[2][DEPTH * STRIDE];         // (row of inp, column of the tile)
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;  // where the block's tile begins
    int first = blockIdx.z * LENGTH, end = min(first + LENGTH, N);  // its rows of dout and inp
    int y = warp_id() / 4 * ROWS * 16, x = warp_id() % 4 * COLUMNS * 16;  // the warp's, within it

    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sums[ROWS][COLUMNS];
    for (int i = 0; i < ROWS; i++) {
        for (int j = 0; j < COLUMNS; j++) {
            wmma::fill_fragment(sums[i][j], 0.0f);
        }
    }
    Vec next_a[SHARE], next_b[SHARE];
    load_tile(next_a, dout, first, row, end, OC);
    load_tile(next_b, inp, first, column, end, C);
    for (int start = first, turn = 0; start < end; start += DEPTH, turn ^= 1) {
        store_tile(a[turn], next_a);
        store_tile(b[turn], next_b);
        __syncthreads();  // all threads wrote these tiles and read the pair filled next
        if (start + DEPTH < end) {
            load_tile(next_a, dout, start + DEPTH, row, end, OC);
            load_tile(next_b, inp, start + DEPTH, column, end, C);
        }
#pragma unroll 1  // unrolling would take more registers than BLOCKS blocks have
        for (int k = 0; k < DEPTH; k += 16) {
            wmma::fragment<wmma::matrix_b, 16, 16, 16, real, wmma::row_major> bs[COLUMNS];
            for (int j = 0; j < COLUMNS; j++) {
                wmma::load_matrix_sync(bs[j], b[turn] + k * STRIDE + x + j * 16, STRIDE);
            }
            for (int i = 0; i < ROWS; i++) {
                wmma::fragment<wmma::matrix_a, 16, 16, 16, real, wmma::col_major> as;
                wmma::load_matrix_sync(as, a[turn] + k * STRIDE + y + i * 16, STRIDE);
                for (int j = 0; j < COLUMNS; j++) {
                    wmma::mma_sync(sums[i][j], as, bs[j], sums[i][j]);
                }
            }
        }
    }

    __syncthreads();  // all have read the last tiles before results overwrite them
    float* patch = reinterpret_cast<float*>(a) + warp_id() * 16 * PATCH;  // a warp's results
    int lane_row = lane_id() / 2, lane_column = lane_id() % 2 * 8;          // of 16 x 16 results
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
