// matmul forward: 64 channels in a stage, swizzled
// Needs:  real in (float16, bfloat16); sm >= 80; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE = 128; DEPTH = 64; WARPS = 8; STAGES = min(4, shared_bytes // 2 // 32768);
//         SHARED = STAGES * 2 * TILE * DEPTH * sizeof_real
// Launch: matmul_forward<<<(ceil_div(OC, TILE), ceil_div(N, TILE)), WARPS * warp, SHARED>>>
// After:  16bit-8

#include "async.cuh"
#include "mma_real.cuh"

constexpr int ROWS = 64, COLUMNS = 32;  // outputs of a warp; the warps form a 2 x 4 grid
constexpr int PIECES = DEPTH / VECTOR;  // of 16 bytes, to a row of a tile
constexpr int STEP = WARPS * WARP_SIZE / PIECES;  // rows that the block copies at once

// Swizzle: the position of 16-byte piece p of a row in a tile (rows, DEPTH). A row covers all
// banks once, and piece p is in different banks in each of 8 rows.
__device__ __forceinline__ int place(int row, int p) {
    return row * DEPTH + (p ^ row % PIECES) * VECTOR;
}

// Starts to copy a tile of `matrix` (rows, C) at `row` and channel `start`; zeros outside it.
__device__ __forceinline__ void copy_tile(real* tile, const real* matrix, int row, int start,
                                          int rows, int C) {
    int y = threadIdx.x / PIECES, p = threadIdx.x % PIECES, k = start + p * VECTOR;
    const real* from = matrix + (size_t)(row + y) * C + k;
    real* to = tile + place(y, p);
#pragma unroll
    for (int s = 0; s < TILE; s += STEP) {  // STEP is a multiple of 8: the swizzle repeats
        cp_async_16_or_zero(to + s * DEPTH, from + (size_t)s * C, row + y + s < rows && k < C);
    }
}

// The launch bounds limit registers so that two blocks fit on an SM.
extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE, 2) matmul_forward(
    real* __restrict__ out,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC), or null
    int N, int C, int OC) {
    extern __shared__ Vec shared[];
    real* a = shared->at;                 // (STAGES, row of the tile, channel)     of inp
    real* b = a + STAGES * TILE * DEPTH;  // (STAGES, column of the tile, channel)  of weight
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;    // where the block's tile begins
    int y = warp_id() / 4 * ROWS, x = warp_id() % 4 * COLUMNS;  // the warp's, within it
    int lane = lane_id(), g = lane / 4, t = lane % 4;

    float sums[ROWS / 16][COLUMNS / 8][4] = {};  // accumulators: D matrices of 16 x 8
    for (int stage = 0; stage < STAGES - 1; stage++) {
        copy_tile(a + stage * TILE * DEPTH, inp, row, stage * DEPTH, N, C);
        copy_tile(b + stage * TILE * DEPTH, weight, column, stage * DEPTH, OC, C);
        cp_async_commit();
    }
    for (int start = 0, stage = 0; start < C; start += DEPTH, stage = (stage + 1) % STAGES) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // all copies have arrived; all threads have read the stage filled next
        int ahead = start + (STAGES - 1) * DEPTH, filled = (stage + STAGES - 1) % STAGES;
        if (ahead < C) {
            copy_tile(a + filled * TILE * DEPTH, inp, row, ahead, N, C);
            copy_tile(b + filled * TILE * DEPTH, weight, column, ahead, OC, C);
        }
        cp_async_commit();  // may be empty: cp_async_wait counts groups
        const real *tile_a = a + stage * TILE * DEPTH, *tile_b = b + stage * TILE * DEPTH;
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            unsigned bs[COLUMNS / 16][4];  // two B matrices each
#pragma unroll
            for (int j = 0; j < COLUMNS / 16; j++) {
                int r = x + j * 16 + lane / 16 * 8 + lane % 8;
                ldmatrix_x4(bs[j], tile_b + place(r, k / 8 + lane / 8 % 2));
            }
#pragma unroll
            for (int i = 0; i < ROWS / 16; i++) {
                unsigned as[4];
                ldmatrix_x4(as, tile_a + place(y + i * 16 + lane % 16, k / 8 + lane / 16));
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
