// matmul forward, amd rung 6: double buffering in shared memory
// Before: rung 5 loads tiles, waits, multiplies, waits, and only then loads the next tiles.
// Change: double buffering: two pairs of tiles in shared memory (LDS). A thread loads its share of
//         the next tiles into registers, then multiplies the present tiles, and then stores the
//         share to the other pair. There is no cp.async: copies pass through registers.
// Expect: loads from memory overlap with products; one barrier per step instead of two. Twice the
//         shared memory: a compute unit of CDNA 3 (64 KB) has room for two blocks instead of four.
// Needs:  real in (float16, bfloat16); cdna >= 2 or rdna >= 3; C % vector == 0
// Define: TILE = 128; DEPTH = 32; WARPS = 8; SIDE = 16
// Launch: matmul_forward<<<(ceil_div(OC, TILE), ceil_div(N, TILE)), WARPS * warp>>>
// After:  amd-5
// Left:   lanes that read pieces of 8 rows find them in half of the banks: a bank conflict ->
//         rung 7.

#include "hip/matrix_core.cuh"

constexpr int ROWS = TILE / 2, COLUMNS = TILE / 4;  // outputs of a wave, one of 2 x 4
constexpr int SHARE = TILE * DEPTH / (WARPS * WARP_SIZE * VECTOR);  // vectors of a tile per thread

// The position of 16-byte piece p of a row in a tile (rows, DEPTH).
__device__ __forceinline__ int place(int row, int p) { return row * DEPTH + p * VECTOR; }

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
        store_vec(tile + place(t / DEPTH, t % DEPTH / VECTOR), share[s]);
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE) matmul_forward(
    real* __restrict__ out,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC), or null
    int N, int C, int OC) {
    // Double buffers: one tile is multiplied while the other is filled.
    __shared__ alignas(16) real a[2][TILE * DEPTH];           // (row of the tile, channel) of inp
    __shared__ alignas(16) real b[2][TILE * DEPTH];           // (column, channel) of weight
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;  // where the block's tile begins
    int y = warp_id() / 4 * ROWS, x = warp_id() % 4 * COLUMNS;  // the wave's, within it

    Accumulator sums[ROWS / SIDE][COLUMNS / SIDE] = {};
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
#pragma unroll
        for (int k = 0; k < DEPTH; k += STEP) {
            Fragment bs[COLUMNS / SIDE];
#pragma unroll
            for (int j = 0; j < COLUMNS / SIDE; j++) {
                bs[j] = load_b<place>(b[turn], x + j * SIDE, k);
            }
#pragma unroll
            for (int i = 0; i < ROWS / SIDE; i++) {
                Fragment as = load_a<place>(a[turn], y + i * SIDE, k);
#pragma unroll
                for (int j = 0; j < COLUMNS / SIDE; j++) multiply_add(sums[i][j], as, bs[j]);
            }
        }
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
