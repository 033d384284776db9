// matmul backward_input, float32 rung 8: TF32 on tensor cores, mma.sync
// Before: in rung 7, CUDA cores do a multiply-add for each product. Tensor cores multiply float32
//         matrices only as TF32: 10 instead of 23 bits of fraction.
// Change: the block of 16bit rung 9, with float32 in shared memory. A lane rounds its fragments to
//         TF32 before each product. ldmatrix cannot transpose float32, which it sees as pairs of
//         16-bit elements; so a lane loads B itself, two neighbouring columns at a time. They
//         become the same column of two B matrices: the order of the columns is free, as long as
//         results are stored in the same order. Then a lane has four neighbours of a row to store.
// Expect: half the rate of 16bit rung 9, since a product of 16 x 8 x 8 takes the tensor cores as
//         long as one of 16 x 8 x 16 in 16 bits. Results are as exact as their factors: to 2^-11.
// Needs:  real == float32; sm >= 80; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE_ROWS = 128; HIGH = ceil_div(N, TILE_ROWS);
//         TILE_COLUMNS = matmul.tiles.tile_columns(HIGH, C, multiprocessors, 256, 192);
//         DEPTH = 32; WARPS = 8;
//         STAGES = min(4, shared_bytes // (4 * DEPTH * (TILE_ROWS + TILE_COLUMNS)));
//         SHARED = 4 * STAGES * DEPTH * (TILE_ROWS + TILE_COLUMNS)
// Launch: matmul_backward_input<<<(ceil_div(C, TILE_COLUMNS), HIGH), WARPS * warp, SHARED>>>
// TF32:   both factors, rounded to nearest by the lanes
// After:  16bit-9
// Left:   on Hopper, mma.sync cannot keep the tensor cores busy -> rung 9.

#include "async.cuh"
#include "mma_tf32.cuh"
#include "portable.cuh"

struct alignas(8) Pair { float at[2]; };

constexpr int ROWS = 64, COLUMNS = TILE_COLUMNS / 4;  // outputs of a warp; a 2 x 4 grid of warps

// Swizzles: the position of 16-byte piece p of a row in a tile. In a tile (rows, DEPTH), piece p is
// in different banks in each of 8 rows, since ldmatrix reads it from 8 rows at once. In a tile
// (DEPTH, 64), two neighbouring pieces are in different banks in each of 4 rows, from which half a
// warp reads at once.
__device__ __forceinline__ int place_a(int row, int p) { return row * DEPTH + (p ^ row % 8) * 4; }
__device__ __forceinline__ int place_b(int row, int p) { return row * 64 + (p ^ row % 4 * 2) * 4; }

// Starts to copy a tile of dout (N, OC) at `row` and feature `start`; zeros outside it.
__device__ __forceinline__ void copy_a(float* tile, const float* dout, int row, int start, int N,
                                       int OC) {
    constexpr int PIECES = DEPTH / 4, STEP = WARPS * WARP_SIZE / PIECES;  // rows copied at once
    int y = threadIdx.x / PIECES, p = threadIdx.x % PIECES, c = start + p * 4;
    const float* from = dout + (size_t)(row + y) * OC + c;
    float* to = tile + place_a(y, p);
#pragma unroll
    for (int s = 0; s < TILE_ROWS; s += STEP) {  // STEP is a multiple of 8: the swizzle repeats
        cp_async_16_or_zero(to + s * DEPTH, from + (size_t)s * OC, row + y + s < N && c < OC);
    }
}

// Starts to copy a tile of weight (OC, C) at feature `start` and `column`, as blocks (DEPTH, 64).
__device__ __forceinline__ void copy_b(float* tile, const float* weight, int start, int column,
                                       int OC, int C) {
    constexpr int STEP = WARPS * WARP_SIZE / 16;  // rows copied at once, a multiple of 4
    int y = threadIdx.x / 16, p = threadIdx.x % 16, c = column + p * 4;
    const float* from = weight + (size_t)(start + y) * C + c;
    float* to = tile + place_b(y, p);
#pragma unroll
    for (int x = 0; x < TILE_COLUMNS; x += 64) {
#pragma unroll
        for (int s = 0; s < DEPTH; s += STEP) {
            cp_async_16_or_zero(to + x * DEPTH + s * 64, from + (size_t)s * C + x,
                                start + y + s < OC && c + x < C);
        }
    }
}

// A warp's fragments (what its lanes hold of A and B matrices) of 8 features.
struct Fragments {
    unsigned a[ROWS / 16][4];     // A matrices
    unsigned b[COLUMNS / 16][4];  // B matrices, in pairs

    // Loads them from a tile of dout and a tile of weight. The warp's rows begin at `y`, its
    // columns at `x`. Of 16 columns, 2g and 2g + 1 become column g of two B matrices.
    __device__ __forceinline__ void load(const float* tile_a, const float* tile_b, int y, int x,
                                         int k) {
        int lane = lane_id(), g = lane / 4, t = lane % 4;
#pragma unroll
        for (int i = 0; i < ROWS / 16; i++) {
            ldmatrix_x4(a[i], tile_a + place_a(y + i * 16 + lane % 16, k / 4 + lane / 16));
        }
#pragma unroll
        for (int j = 0; j < COLUMNS / 16; j++) {
            int c = x + j * 16;
            const float* block = tile_b + c / 64 * 64 * DEPTH + g % 2 * 2;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int at = place_b(k + half * 4 + t, c % 64 / 4 + g / 2);
                Pair pair = *reinterpret_cast<const Pair*>(block + at);
                b[j][half] = __float_as_uint(pair.at[0]);
                b[j][2 + half] = __float_as_uint(pair.at[1]);
            }
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

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE) matmul_backward_input(
    real* __restrict__ dinp,          // (N, C)
    const real* __restrict__ dout,    // (N, OC)
    const real* __restrict__ weight,  // (OC, C)
    int N, int C, int OC) {
    extern __shared__ Vec shared[];
    float* a = shared->at;                      // (STAGES, TILE_ROWS, DEPTH)             of dout
    float* b = a + STAGES * TILE_ROWS * DEPTH;  // (STAGES, TILE_COLUMNS / 64, DEPTH, 64)  of weight
    int row = blockIdx.y * TILE_ROWS, column = blockIdx.x * TILE_COLUMNS;  // where its tile begins
    int y = warp_id() / 4 * ROWS, x = warp_id() % 4 * COLUMNS;             // the warp's, within it
    int lane = lane_id(), g = lane / 4, t = lane % 4;

    auto copy = [&](int stage, int start) {  // copies zeros past the end: cheaper than a branch
        copy_a(a + stage * TILE_ROWS * DEPTH, dout, row, start, N, OC);
        copy_b(b + stage * DEPTH * TILE_COLUMNS, weight, start, column, OC, C);
        cp_async_commit();
    };
    for (int stage = 0; stage < STAGES; stage++) {
        copy(stage, stage * DEPTH);
    }
    cp_async_wait<STAGES - 1>();
    __syncthreads();  // all copies to stage 0 have arrived before any warp reads it

    float sums[ROWS / 16][COLUMNS / 8][4] = {};  // accumulators: D matrices of 16 x 8
    Fragments now, next;
    now.load(a, b, y, x, 0);
    for (int start = 0, stage = 0; start < OC; start += DEPTH) {
#pragma unroll
        for (int k = 0; k < DEPTH; k += 8) {
            if (k + 8 < DEPTH) {
                next.load(a + stage * TILE_ROWS * DEPTH, b + stage * DEPTH * TILE_COLUMNS, y, x,
                          k + 8);
            } else {
                cp_async_wait<STAGES - 2>();
                __syncthreads();  // the next stage has arrived; all warps have read this one
                copy(stage, start + STAGES * DEPTH);
                stage = (stage + 1) % STAGES;
                next.load(a + stage * TILE_ROWS * DEPTH, b + stage * DEPTH * TILE_COLUMNS, y, x, 0);
            }
            now.round();
            now.multiply(sums);
            now = next;
        }
    }

    cp_async_wait<0>();  // no copy may be under way when the block ends
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j += 2) {
        int c = column + x + j * 8 + 4 * t;  // columns 2t and 2t + 1 of both matrices, in order
        if (c >= C) break;
#pragma unroll
        for (int i = 0; i < ROWS / 8; i++) {
            int r = row + y + i * 8 + g;
            if (r >= N) break;
            const float *even = &sums[i / 2][j][i % 2 * 2], *odd = &sums[i / 2][j + 1][i % 2 * 2];
            store_vec(dinp + (size_t)r * C + c, {even[0], odd[0], even[1], odd[1]});
        }
    }
}
