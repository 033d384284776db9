// matmul forward, amd rung 5: matrix cores
// Before: rung 4 computes with float32 multiply-adds, one or two of a lane per instruction.
// Change: matrix cores, AMD's units that multiply small matrices: MFMA on CDNA, WMMA on RDNA. With
//         one instruction, a wave multiplies matrices of 16-bit elements, and accumulates in
//         float32. Tiles stay in 16 bits. A wave has 4 x 2 matrices of 16 x 16 of the block's
//         128 x 128 outputs.
// Expect: up to eight times the multiply-adds per clock on an MI300X. Both instructions document
//         which lane holds which element, so that results are stored from registers.
// Needs:  real in (float16, bfloat16); cdna >= 2 or rdna >= 3; C % vector == 0
// Define: TILE = 128; DEPTH = 32; WARPS = 8; SIDE = 16
// Launch: matmul_forward<<<(ceil_div(OC, TILE), ceil_div(N, TILE)), WARPS * warp>>>
// After:  4
// Left:   the matrix cores starve for data while the next tiles are loaded -> rung 6.

#include "hip/matrix_core.cuh"

constexpr int ROWS = TILE / 2, COLUMNS = TILE / 4;  // outputs of a wave, one of 2 x 4

// The position of 16-byte piece p of a row in a tile (rows, DEPTH).
__device__ __forceinline__ int place(int row, int p) { return row * DEPTH + p * VECTOR; }

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
        store_vec(tile + place(y, k / VECTOR), v);
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE) matmul_forward(
    real* __restrict__ out,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC), or null
    int N, int C, int OC) {
    __shared__ alignas(16) real a[TILE * DEPTH];              // (row of the tile, channel) of inp
    __shared__ alignas(16) real b[TILE * DEPTH];              // (column, channel) of weight
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;  // where the block's tile begins
    int y = warp_id() / 4 * ROWS, x = warp_id() % 4 * COLUMNS;  // the wave's, within it

    Accumulator sums[ROWS / SIDE][COLUMNS / SIDE] = {};
    for (int start = 0; start < C; start += DEPTH) {
        load_tile(a, inp, row, start, N, C);
        load_tile(b, weight, column, start, OC, C);
        __syncthreads();  // the tiles are complete before any wave reads them
#pragma unroll
        for (int k = 0; k < DEPTH; k += STEP) {
            Fragment bs[COLUMNS / SIDE];
#pragma unroll
            for (int j = 0; j < COLUMNS / SIDE; j++) bs[j] = load_b<place>(b, x + j * SIDE, k);
#pragma unroll
            for (int i = 0; i < ROWS / SIDE; i++) {
                Fragment as = load_a<place>(a, y + i * SIDE, k);
#pragma unroll
                for (int j = 0; j < COLUMNS / SIDE; j++) multiply_add(sums[i][j], as, bs[j]);
            }
        }
        __syncthreads();  // all waves have read the tiles before the next ones overwrite them
    }

#pragma unroll
    for (int j = 0; j < COLUMNS / SIDE; j++) {
        int c = column + x + j * SIDE + d_column();
        if (c >= OC) break;
        float add = bias ? to_float(bias[c]) : 0.0f;
#pragma unroll
        for (int i = 0; i < ROWS / SIDE; i++) {
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                int r = row + y + i * SIDE + d_row(e);
                if (r < N) out[(size_t)r * OC + c] = to_real(sums[i][j][e] + add);
            }
        }
    }
}
