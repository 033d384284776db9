// matmul backward_weight, float32 rung 8: TF32 on tensor cores, mma.sync
// Before: in rung 7, CUDA cores do a multiply-add for each product. Tensor cores multiply float32
//         matrices only as TF32: 10 instead of 23 bits of fraction.
// Change: the block of 16bit rung 10, with float32 in shared memory. A lane rounds its fragments to
//         TF32 before each product. ldmatrix cannot transpose float32, which it sees as pairs of
//         16-bit elements; so a lane loads both factors itself, two neighbours at a time. Two rows
//         of dweight become rows g and g + 8 of an A matrix, two columns the same column of two B
//         matrices: their order is free, as long as results are stored in the same order. Tiles and
//         parts as in 16bit rung 15: a tile that is not split is added to dweight at once.
// Expect: half the rate of 16bit rung 10, since a product of 16 x 8 x 8 takes the tensor cores as
//         long as one of 16 x 8 x 16 in 16 bits. Results are as exact as their factors: to 2^-11.
// Needs:  real == float32; sm >= 80; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE_ROWS = 128; DEPTH = 32; WARPS = 8; STEPS = ceil_div(N, DEPTH);
//         HIGH = ceil_div(OC, TILE_ROWS);
//         TILE_COLUMNS, PARTS = matmul.tiles.split_tiles(HIGH, C, OC, STEPS, multiprocessors);
//         LENGTH = ceil_div(STEPS, PARTS) * DEPTH;
//         STAGES = min(4, shared_bytes // (4 * DEPTH * (TILE_ROWS + TILE_COLUMNS)));
//         SHARED = 4 * STAGES * DEPTH * (TILE_ROWS + TILE_COLUMNS)
// Launch: matmul_backward_weight<<<(ceil_div(C, TILE_COLUMNS), HIGH, PARTS), WARPS * warp,
//         SHARED>>>
// Launch: matmul_backward_weight_finish<<<ceil_div(OC * C, 4 * 256), 256>>> if PARTS > 1
// Scratch: float32 partial[PARTS, OC if PARTS > 1 else 1, C]
// TF32:   both factors, rounded to nearest by the lanes
// After:  matmul.backward_input float32-8
// Left:   on Hopper, mma.sync cannot keep the tensor cores busy -> rung 9.

#include "async.cuh"
#include "mma_tf32.cuh"
#include "portable.cuh"

struct alignas(8) Pair { float at[2]; };

constexpr int ROWS = 64, COLUMNS = TILE_COLUMNS / 4;  // outputs of a warp; a 2 x 4 grid of warps

// Swizzle: the position of 16-byte piece p of a row in a block (DEPTH, 64) of a tile. Two
// neighbouring pieces are in different banks in each of 4 rows, from which 16 lanes read at once.
__device__ __forceinline__ int place(int row, int p) { return row * 64 + (p ^ row % 4 * 2) * 4; }

// Starts to copy a tile of `matrix` (rows, columns) at (row, column), as blocks (DEPTH, 64); zeros
// outside it.
template <int WIDTH>  // of the tile
__device__ __forceinline__ void copy_tile(float* tile, const float* matrix, int row, int column,
                                          int rows, int columns) {
    constexpr int STEP = WARPS * WARP_SIZE / 16;  // rows copied at once, a multiple of 4
    int y = threadIdx.x / 16, p = threadIdx.x % 16, c = column + p * 4;
    const float* from = matrix + (size_t)(row + y) * columns + c;
    float* to = tile + place(y, p);
#pragma unroll
    for (int x = 0; x < WIDTH; x += 64) {
#pragma unroll
        for (int s = 0; s < DEPTH; s += STEP) {
            cp_async_16_or_zero(to + x * DEPTH + s * 64, from + (size_t)s * columns + x,
                                row + y + s < rows && c + x < columns);
        }
    }
}

// Loads columns c + 2g and c + 2g + 1 of row `row` of a tile.
__device__ __forceinline__ Pair load_pair(const float* tile, int row, int c, int g) {
    const float* block = tile + c / 64 * 64 * DEPTH + g % 2 * 2;
    return *reinterpret_cast<const Pair*>(block + place(row, c % 64 / 4 + g / 2));
}

// A warp's fragments (what its lanes hold of A and B matrices) of 8 rows of dout and inp.
struct Fragments {
    unsigned a[ROWS / 16][4];     // A matrices
    unsigned b[COLUMNS / 16][4];  // B matrices, in pairs

    // Loads them from a tile of dout and a tile of inp. The warp's columns begin at `y` and at `x`.
    // Of 16 columns, 2g and 2g + 1 become rows g and g + 8 of A, or column g of two B matrices.
    __device__ __forceinline__ void load(const float* tile_a, const float* tile_b, int y, int x,
                                         int k) {
        int lane = lane_id(), g = lane / 4, t = lane % 4;
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int i = 0; i < ROWS / 16; i++) {
                Pair pair = load_pair(tile_a, k + half * 4 + t, y + i * 16, g);
                a[i][2 * half] = __float_as_uint(pair.at[0]);
                a[i][2 * half + 1] = __float_as_uint(pair.at[1]);
            }
#pragma unroll
            for (int j = 0; j < COLUMNS / 16; j++) {
                Pair pair = load_pair(tile_b, k + half * 4 + t, x + j * 16, g);
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

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE) matmul_backward_weight(
    float* __restrict__ dweight,    // (OC, C)  accumulates
    const real* __restrict__ dout,  // (N, OC)
    const real* __restrict__ inp,   // (N, C)
    int N, int C, int OC,
    float* __restrict__ partial) {  // (PARTS, OC, C)  sums over the rows of each part
    extern __shared__ Vec shared[];
    float* a = shared->at;                      // (STAGES, TILE_ROWS / 64, DEPTH, 64)     of dout
    float* b = a + STAGES * DEPTH * TILE_ROWS;  // (STAGES, TILE_COLUMNS / 64, DEPTH, 64)  of inp
    int row = blockIdx.y * TILE_ROWS, column = blockIdx.x * TILE_COLUMNS;  // where its tile begins
    int first = blockIdx.z * LENGTH, end = min(first + LENGTH, N);         // rows of dout and inp
    int y = warp_id() / 4 * ROWS, x = warp_id() % 4 * COLUMNS;             // the warp's outputs
    int lane = lane_id(), g = lane / 4, t = lane % 4;

    auto copy = [&](int stage, int start) {  // copies zeros past the end: cheaper than a branch
        copy_tile<TILE_ROWS>(a + stage * DEPTH * TILE_ROWS, dout, start, row, end, OC);
        copy_tile<TILE_COLUMNS>(b + stage * DEPTH * TILE_COLUMNS, inp, start, column, end, C);
        cp_async_commit();
    };
    for (int stage = 0; stage < STAGES; stage++) {
        copy(stage, first + stage * DEPTH);
    }
    cp_async_wait<STAGES - 1>();
    __syncthreads();  // all copies to stage 0 have arrived before any warp reads it

    float sums[ROWS / 16][COLUMNS / 8][4] = {};  // accumulators: D matrices of 16 x 8
    Fragments now, next;
    now.load(a, b, y, x, 0);
    for (int start = first, stage = 0; start < end; start += DEPTH) {
#pragma unroll
        for (int k = 0; k < DEPTH; k += 8) {
            if (k + 8 < DEPTH) {
                next.load(a + stage * DEPTH * TILE_ROWS, b + stage * DEPTH * TILE_COLUMNS, y, x,
                          k + 8);
            } else {
                cp_async_wait<STAGES - 2>();
                __syncthreads();  // the next stage has arrived; all warps have read this one
                copy(stage, start + STAGES * DEPTH);
                stage = (stage + 1) % STAGES;
                next.load(a + stage * DEPTH * TILE_ROWS, b + stage * DEPTH * TILE_COLUMNS, y, x, 0);
            }
            now.round();
            now.multiply(sums);
            now = next;
        }
    }

    cp_async_wait<0>();  // no copy may be under way when the block ends
    float* result = PARTS > 1 ? partial + (size_t)blockIdx.z * OC * C : dweight;
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j += 2) {
        int c = column + x + j * 8 + 4 * t;  // columns 2t and 2t + 1 of both matrices, in order
        if (c >= C) break;
#pragma unroll
        for (int i = 0; i < ROWS / 8; i++) {
            int r = row + y + i / 2 * 16 + 2 * g + i % 2;  // row g, or g + 8, of an A matrix
            if (r >= OC) continue;
            const float *even = &sums[i / 2][j][i % 2 * 2], *odd = &sums[i / 2][j + 1][i % 2 * 2];
            float* to = result + (size_t)r * C + c;
            Vec before = {};
            if (PARTS == 1) before = load_vec(to);
            store_vec(to, {before[0] + even[0], before[1] + odd[0], before[2] + even[1],
                           before[3] + odd[1]});
        }
    }
}

// Adds the PARTS partial sums to dweight; a thread adds four neighbours.
extern "C" __global__ void matmul_backward_weight_finish(
    float* __restrict__ dweight, int N, int C, int OC, const float* __restrict__ partial) {
    size_t index = ((size_t)blockIdx.x * 256 + threadIdx.x) * 4, size = (size_t)OC * C;
    if (index >= size) return;
    Vec sum = load_vec(dweight + index);
    for (int part = 0; part < PARTS; part++) {
        Vec four = load_vec(partial + part * size + index);
        for (int k = 0; k < 4; k++) {
            sum[k] += four[k];
        }
    }
    store_vec(dweight + index, sum);
}
