// matmul backward_weight, 16bit rung 10: larger warp tile (64 x 64 outputs)
// Before: in rung 9, a warp reads 64 + 32 rows of 16 elements from shared memory for 64 x 32
//         outputs. With the copies, this takes shared memory longer than the products take the
//         tensor cores.
// Change: a warp has 64 x 64 outputs, a block 128 x 256. Registers are left for one block per
//         SM. Each quarter of the SM then has only two warps, too few to hide each other's reads.
//         So a warp loads the fragments of the next 16 rows before it multiplies the present ones.
//         SPLITS is chosen for WAVES blocks per SM, one after the other.
// Expect: two thirds of the bytes from shared memory for a product, three quarters from L2.
// Needs:  real in (float16, bfloat16); sm >= 80; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE_ROWS = 128; TILE_COLUMNS = 256; DEPTH = 32; WARPS = 8; WAVES = 3;
//         STAGES = min(4, shared_bytes // 24576);
//         SHARED = STAGES * (TILE_ROWS + TILE_COLUMNS) * DEPTH * sizeof_real;
//         TILES = ceil_div(C, TILE_COLUMNS) * ceil_div(OC, TILE_ROWS);
//         SPLITS = max(1, min(ceil_div(N, 128), WAVES * multiprocessors // TILES));
//         LENGTH = ceil_div(N, SPLITS)
// Launch: matmul_backward_weight<<<(ceil_div(C, TILE_COLUMNS), ceil_div(OC, TILE_ROWS), SPLITS),
//         WARPS * warp, SHARED>>>
// Launch: matmul_backward_weight_finish<<<ceil_div(OC * C, 4 * 256), 256>>>
// Scratch: float32 partial[SPLITS, OC, C]
// After:  16bit-9
// Left:   mma.sync cannot keep Hopper's tensor cores as busy as wgmma, Hopper's own instruction ->
//         rung 11.

#include "async.cuh"
#include "mma_real.cuh"

struct alignas(16) Floats { float at[4]; };  // one 16-byte load or store
struct alignas(8) Pair { float at[2]; };

constexpr int ROWS = 64, COLUMNS = 64;  // outputs of a warp; the warps form a 2 x 4 grid

// Swizzle: the position of 16-byte piece p of a row in a tile of WIDTH columns. It is in different
// banks in each of 8 rows, since ldmatrix reads the piece from 8 rows at once.
template <int WIDTH>
__device__ __forceinline__ int place(int row, int p) {
    return row * WIDTH + (p ^ row % 8) * VECTOR;
}

// Starts to copy a tile of `matrix` (rows, columns) at (row, column); zeros outside it.
template <int WIDTH>  // of the tile
__device__ __forceinline__ void copy_tile(real* tile, const real* matrix, int row, int column,
                                          int rows, int columns) {
    constexpr int PIECES = WIDTH / VECTOR;            // 16-byte pieces per row
    constexpr int STEP = WARPS * WARP_SIZE / PIECES;  // rows that the block copies at once
    int y = threadIdx.x / PIECES, p = threadIdx.x % PIECES, c = column + p * VECTOR;
    const real* from = matrix + (size_t)(row + y) * columns + c;
    real* to = tile + place<WIDTH>(y, p);
#pragma unroll
    for (int s = 0; s < DEPTH; s += STEP) {  // STEP is a multiple of 8: the swizzle repeats
        cp_async_16_or_zero(to + s * WIDTH, from + (size_t)s * columns,
                            row + y + s < rows && c < columns);
    }
}

// A warp's fragments (what its lanes hold of A and B matrices) of 16 rows of dout and inp.
struct Fragments {
    unsigned a[ROWS / 16][4];     // A matrices
    unsigned b[COLUMNS / 16][4];  // B matrices, in pairs

    // Loads them from a tile of dout and a tile of inp. The warp's columns begin at `y` and at `x`.
    __device__ __forceinline__ void load(const real* tile_a, const real* tile_b, int y, int x,
                                         int k) {
        int lane = lane_id();
#pragma unroll
        for (int i = 0; i < ROWS / 16; i++) {
            int r = k + lane / 16 * 8 + lane % 8, p = y / 8 + i * 2 + lane / 8 % 2;
            ldmatrix_x4_trans(a[i], tile_a + place<TILE_ROWS>(r, p));
        }
#pragma unroll
        for (int j = 0; j < COLUMNS / 16; j++) {
            int p = x / 8 + j * 2 + lane / 16;
            ldmatrix_x4_trans(b[j], tile_b + place<TILE_COLUMNS>(k + lane % 16, p));
        }
    }

    __device__ __forceinline__ void multiply(float (&sums)[ROWS / 16][COLUMNS / 8][4]) const {
#pragma unroll
        for (int i = 0; i < ROWS / 16; i++) {
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; j++) {
                mma_m16n8k16(sums[i][j], a[i], {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]});
            }
        }
    }
};

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE) matmul_backward_weight(
    float* __restrict__ dweight,    // (OC, C)  accumulates
    const real* __restrict__ dout,  // (N, OC)
    const real* __restrict__ inp,   // (N, C)
    int N, int C, int OC,
    float* __restrict__ partial) {  // (SPLITS, OC, C)  sums over the rows of each split
    extern __shared__ Vec shared[];
    real* a = shared->at;                      // (STAGES, DEPTH, TILE_ROWS)     of dout
    real* b = a + STAGES * DEPTH * TILE_ROWS;  // (STAGES, DEPTH, TILE_COLUMNS)  of inp
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
        for (int k = 0; k < DEPTH; k += 16) {
            if (k + 16 < DEPTH) {
                next.load(a + stage * DEPTH * TILE_ROWS, b + stage * DEPTH * TILE_COLUMNS, y, x,
                          k + 16);
            } else {
                cp_async_wait<STAGES - 2>();
                __syncthreads();  // the next stage has arrived; all warps have read this one
                copy(stage, start + STAGES * DEPTH);
                stage = (stage + 1) % STAGES;
                next.load(a + stage * DEPTH * TILE_ROWS, b + stage * DEPTH * TILE_COLUMNS, y, x, 0);
            }
            now.multiply(sums);
            now = next;
        }
    }

#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j++) {
        int c = column + x + j * 8 + 2 * t;
        if (c >= C) break;
#pragma unroll
        for (int i = 0; i < ROWS / 8; i++) {
            int r = row + y + i * 8 + g;
            if (r >= OC) break;
            const float* pair = &sums[i / 2][j][i % 2 * 2];
            float* to = partial + ((size_t)blockIdx.z * OC + r) * C + c;
            *reinterpret_cast<Pair*>(to) = {pair[0], pair[1]};
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
