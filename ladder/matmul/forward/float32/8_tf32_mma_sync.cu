// matmul forward, float32 rung 8: TF32 on tensor cores, mma.sync
// Before: in rung 7, CUDA cores do a multiply-add for each product, and most of them already.
//         Tensor cores multiply float32 matrices only as TF32: 10 instead of 23 bits of fraction.
// Change: the block of 16bit rung 11, with float32 in shared memory. ldmatrix moves a float32
//         number as the two halves of a pair. A lane rounds its fragments to TF32 before each
//         product. Tiles are 192 columns wide where that fills the last wave of blocks better.
// Expect: half the rate of 16bit rung 11, since a product of 16 x 8 x 8 takes the tensor cores as
//         long as one of 16 x 8 x 16 in 16 bits. Results are as exact as their factors: to 2^-11.
// Needs:  real == float32; sm >= 80; warp == 32; C % vector == 0; OC % vector == 0;
//         TILE_COLUMNS == 192 or sm != 89
// Define: TILE_ROWS = 128; HIGH = ceil_div(N, TILE_ROWS);
//         TILE_COLUMNS = matmul.tiles.tile_columns(HIGH, OC, multiprocessors, 256, 192);
//         DEPTH = 32; WARPS = 8; GROUP = 8;
//         STAGES = min(4, shared_bytes // (4 * DEPTH * (TILE_ROWS + TILE_COLUMNS)));
//         SHARED = 4 * STAGES * DEPTH * (TILE_ROWS + TILE_COLUMNS)
// Launch: matmul_forward<<<ceil_div(OC, TILE_COLUMNS) * HIGH, WARPS * warp, SHARED>>>
// TF32:   both factors, rounded to nearest by the lanes
// After:  16bit-11
// Left:   on Hopper, mma.sync cannot keep the tensor cores busy, and each lane rounds what other
//         warps round, too -> rung 9.

#include "async.cuh"
#include "mma_tf32.cuh"
#include "portable.cuh"

struct alignas(8) Pair { float at[2]; };

constexpr int ROWS = 64, COLUMNS = TILE_COLUMNS / 4;  // outputs of a warp; a 2 x 4 grid of warps
constexpr int PIECES = DEPTH / VECTOR;  // of 16 bytes, to a row of a tile
constexpr int STEP = WARPS * WARP_SIZE / PIECES;  // rows that the block copies at once

// Swizzle: the position of 16-byte piece p of a row in a tile (rows, DEPTH). A row covers all banks
// once, and piece p is in different banks in each of 8 rows.
__device__ __forceinline__ int place(int row, int p) {
    return row * DEPTH + (p ^ row % PIECES) * VECTOR;
}

// Starts to copy a tile of `matrix` (rows, C) at `row` and channel `start`; zeros outside it.
template <int HEIGHT>  // of the tile
__device__ __forceinline__ void copy_tile(real* tile, const real* matrix, int row, int start,
                                          int rows, int C) {
    int y = threadIdx.x / PIECES, p = threadIdx.x % PIECES, k = start + p * VECTOR;
    const real* from = matrix + (size_t)(row + y) * C + k;
    real* to = tile + place(y, p);
#pragma unroll
    for (int s = 0; s < HEIGHT; s += STEP) {  // STEP is a multiple of 8: the swizzle repeats
        cp_async_16_or_zero(to + s * DEPTH, from + (size_t)s * C, row + y + s < rows && k < C);
    }
}

// A warp's fragments (what its lanes hold of A and B matrices) of 8 channels.
struct Fragments {
    unsigned a[ROWS / 16][4];     // A matrices
    unsigned b[COLUMNS / 16][4];  // B matrices, in pairs

    // Loads them from a tile of inp and a tile of weight. The warp's rows begin at `y` and at `x`.
    __device__ __forceinline__ void load(const real* tile_a, const real* tile_b, int y, int x,
                                         int k) {
        int lane = lane_id();
#pragma unroll
        for (int i = 0; i < ROWS / 16; i++) {
            ldmatrix_x4(a[i], tile_a + place(y + i * 16 + lane % 16, k / 4 + lane / 16));
        }
#pragma unroll
        for (int j = 0; j < COLUMNS / 16; j++) {
            int r = x + j * 16 + lane / 16 * 8 + lane % 8;
            ldmatrix_x4(b[j], tile_b + place(r, k / 4 + lane / 8 % 2));
        }
    }

    // Rounds them to TF32.
    __device__ __forceinline__ void round() {
#pragma unroll
        for (int e = 0; e < ROWS / 4; e++) {
            a[e / 4][e % 4] = to_tf32(__uint_as_float(a[e / 4][e % 4]));
        }
#pragma unroll
        for (int e = 0; e < COLUMNS / 4; e++) {
            b[e / 4][e % 4] = to_tf32(__uint_as_float(b[e / 4][e % 4]));
        }
    }

    __device__ __forceinline__ void multiply(float (&sums)[ROWS / 16][COLUMNS / 8][4]) const {
#pragma unroll
        for (int i = 0; i < ROWS / 16; i++) {
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; j++) {
                mma_m16n8k8_tf32(sums[i][j], a[i], {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]});
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE) matmul_forward(
    real* __restrict__ out,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC), or null
    int N, int C, int OC) {
    extern __shared__ Vec shared[];
    real* a = shared->at;                      // (STAGES, TILE_ROWS, DEPTH)     of inp
    real* b = a + STAGES * TILE_ROWS * DEPTH;  // (STAGES, TILE_COLUMNS, DEPTH)  of weight
    int high = (N + TILE_ROWS - 1) / TILE_ROWS, wide = (OC + TILE_COLUMNS - 1) / TILE_COLUMNS;
    int top = blockIdx.x / (GROUP * wide) * GROUP, of_group = blockIdx.x % (GROUP * wide);
    int rows = min(GROUP, high - top);  // rows of tiles in this group
    int row = (top + of_group % rows) * TILE_ROWS;  // where the block's tile begins
    int column = of_group / rows * TILE_COLUMNS;
    int y = warp_id() / 4 * ROWS, x = warp_id() % 4 * COLUMNS;  // the warp's, within it
    int lane = lane_id(), g = lane / 4, t = lane % 4;

    auto copy = [&](int stage, int start) {  // copies zeros past the end: cheaper than a branch
        copy_tile<TILE_ROWS>(a + stage * TILE_ROWS * DEPTH, inp, row, start, N, C);
        copy_tile<TILE_COLUMNS>(b + stage * TILE_COLUMNS * DEPTH, weight, column, start, OC, C);
        cp_async_commit();
    };
    for (int stage = 0; stage < STAGES; stage++) {
        copy(stage, stage * DEPTH);
    }
    float sums[ROWS / 16][COLUMNS / 8][4] = {};  // accumulators: D matrices of 16 x 8
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j++) {
        int c = column + x + j * 8 + 2 * t;
        if (!bias || c >= OC) break;
#pragma unroll
        for (int i = 0; i < ROWS / 16; i++) {
            sums[i][j][0] = sums[i][j][2] = bias[c];
            sums[i][j][1] = sums[i][j][3] = bias[c + 1];
        }
    }
    cp_async_wait<STAGES - 1>();
    __syncthreads();  // all copies to stage 0 have arrived before any warp reads it

    Fragments now, next;
    now.load(a, b, y, x, 0);
    for (int start = 0, stage = 0; start < C; start += DEPTH) {
#pragma unroll
        for (int k = 0; k < DEPTH; k += 8) {
            if (k + 8 < DEPTH) {
                next.load(a + stage * TILE_ROWS * DEPTH, b + stage * TILE_COLUMNS * DEPTH, y, x,
                          k + 8);
            } else {
                cp_async_wait<STAGES - 2>();
                __syncthreads();  // the next stage has arrived; all warps have read this one
                copy(stage, start + STAGES * DEPTH);
                stage = (stage + 1) % STAGES;
                next.load(a + stage * TILE_ROWS * DEPTH, b + stage * TILE_COLUMNS * DEPTH, y, x, 0);
            }
            now.round();
            now.multiply(sums);
            now = next;
        }
    }

    cp_async_wait<0>();  // no copy may be under way when the block ends
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j++) {
        int c = column + x + j * 8 + 2 * t;
        if (c >= OC) break;
#pragma unroll
        for (int i = 0; i < ROWS / 8; i++) {
            int r = row + y + i * 8 + g;
            if (r >= N) break;
            const float* pair = &sums[i / 2][j][i % 2 * 2];
            // The four lanes of a row store 32 bytes: a whole sector.
            *reinterpret_cast<Pair*>(out + (size_t)r * OC + c) = {pair[0], pair[1]};
        }
    }
}
