// matmul forward, 16bit rung 7: mma.sync with ldmatrix
// Before: in rung 6, wmma decides how a warp's elements come from shared memory: in bfloat16, with
//         scattered loads of 4 bytes. The results take a detour through shared memory, because only
//         wmma knows which lane holds which element.
// Change: mma.sync and ldmatrix, instructions whose fragments (the part of a matrix that each lane
//         holds) are documented. One ldmatrix loads four 8 x 8 matrices for a warp, 16 bytes per
//         lane. Lanes store their results straight from registers.
// Expect: a quarter of the loads from shared memory in bfloat16, and no detour at the end.
// Needs:  real in (float16, bfloat16); sm >= 80; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE = 128; DEPTH = 32; WARPS = 8
// Launch: matmul_forward<<<(ceil_div(OC, TILE), ceil_div(N, TILE)), WARPS * warp>>>
// After:  16bit-6
// Left:   tiles go through registers to shared memory, only one step ahead -> rung
//         8.

#include "mma_real.cuh"

constexpr int ROWS = 64, COLUMNS = 32;  // outputs of a warp; the warps form a 2 x 4 grid
constexpr int STRIDE = DEPTH + 8;       // padded: 8 rows of a tile begin in different banks
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

// The launch bounds limit registers so that two blocks fit on an SM.
extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE, 2) matmul_forward(
    real* __restrict__ out,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC), or null
    int N, int C, int OC) {
    // Double buffers: one tile is multiplied while the other is filled.
    __shared__ alignas(16) real a[2][TILE * STRIDE];          // (row of the tile, channel) of inp
    __shared__ alignas(16) real b[2][TILE * STRIDE];          // (column, channel) of weight
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;  // where the block's tile begins
    int y = warp_id() / 4 * ROWS, x = warp_id() % 4 * COLUMNS;  // the warp's, within it
    int lane = lane_id(), g = lane / 4, t = lane % 4;

    float sums[ROWS / 16][COLUMNS / 8][4] = {};  // accumulators: D matrices of 16 x 8
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
        for (int k = 0; k < DEPTH; k += 16) {
            unsigned bs[COLUMNS / 16][4];  // two B matrices each
#pragma unroll
            for (int j = 0; j < COLUMNS / 16; j++) {
                int r = x + j * 16 + lane / 16 * 8 + lane % 8;
                ldmatrix_x4(bs[j], b[turn] + r * STRIDE + k + lane / 8 % 2 * 8);
            }
#pragma unroll
            for (int i = 0; i < ROWS / 16; i++) {
                unsigned as[4];
                ldmatrix_x4(as, a[turn] + (y + i * 16 + lane % 16) * STRIDE + k + lane / 16 * 8);
#pragma unroll
                for (int j = 0; j < COLUMNS / 8; j++) {
                    const unsigned* pair = &bs[j / 2][j % 2 * 2];
                    mma_m16n8k16(sums[i][j], as, {pair[0], pair[1]});
                }
            }
        }
    }

#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j++) {
        int c = column + x + j * 8 + 2 * t;
        if (c >= OC) break;
        float low = bias ? to_float(bias[c]) : 0.0f, high = bias ? to_float(bias[c + 1]) : 0.0f;
#pragma unroll
        for (int i = 0; i < ROWS / 8; i++) {
            int r = row + y + i * 8 + g;
            if (r >= N) break;
            const float* pair = &sums[i / 2][j][i % 2 * 2];
            *reinterpret_cast<unsigned*>(out + (size_t)r * OC + c) =
                pack(pair[0] + low, pair[1] + high);
        }
    }
}
