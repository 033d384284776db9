// matmul backward_input, 16bit rung 12: MN-major operand instead of a transpose
// Before: rung 11 transposes weight in a kernel of its own, because this product sums over weight's
//         rows.
// Change: wgmma can also sum over the rows of a tile: weight is an MN-major (transposed) operand.
//         Its tiles must be 64 columns wide, so a stage holds 4 of them.
// Expect: one launch less, and weight is not read and written once more. This shows where N is
//         small.
// Needs:  real in (float16, bfloat16); sm == 90; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE_ROWS = 128; TILE_COLUMNS = 256; DEPTH = 64; WARPS = 8; STAGES = 4;
//         SHARED = STAGES * (TILE_ROWS + TILE_COLUMNS) * DEPTH * sizeof_real
// Launch: matmul_backward_input<<<(ceil_div(C, TILE_COLUMNS), ceil_div(N, TILE_ROWS)),
//         WARPS * warp, SHARED>>>
// After:  16bit-11
// Left:   the tensor cores idle while a block loads its first tiles, and while it stores -> rung
//         13.

#include "async.cuh"
#include "mma_real.cuh"
#include "wgmma_real.cuh"

constexpr int BLOCK = DEPTH * 64;  // elements of a tile of weight
constexpr int STRIDE = TILE_COLUMNS + VECTOR;  // padded: 8 rows of results begin in different banks

// Swizzle: the position of 16-byte piece p of a row in tiles of HEIGHT rows and 64 columns, as
// wgmma expects it.
template <int HEIGHT>
__device__ __forceinline__ int place(int row, int p) {
    return p / 8 * HEIGHT * 64 + row * 64 + (p % 8 ^ row % 8) * VECTOR;
}

// Starts to copy a tile of `matrix` (rows, columns) at (row, column); zeros outside it.
template <int HEIGHT, int WIDTH>  // of the tiles, side by side
__device__ __forceinline__ void copy_tiles(real* tiles, const real* matrix, int row, int column,
                                           int rows, int columns) {
    constexpr int PIECES = WIDTH / VECTOR;            // 16-byte pieces per row
    constexpr int STEP = WARPS * WARP_SIZE / PIECES;  // rows that the block copies at once
    int y = threadIdx.x / PIECES, p = threadIdx.x % PIECES, c = column + p * VECTOR;
    const real* from = matrix + (size_t)(row + y) * columns + c;
    real* to = tiles + place<HEIGHT>(y, p);
#pragma unroll
    for (int s = 0; s < HEIGHT; s += STEP) {  // STEP is a multiple of 8: the swizzle repeats
        cp_async_16_or_zero(to + s * 64, from + (size_t)s * columns,
                            row + y + s < rows && c < columns);
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE) matmul_backward_input(
    real* __restrict__ dinp,          // (N, C)
    const real* __restrict__ dout,    // (N, OC)
    const real* __restrict__ weight,  // (OC, C)
    int N, int C, int OC) {
    extern __shared__ __align__(1024) Vec shared[];
    real* a = shared->at;                      // (STAGES, TILE_ROWS, DEPTH)              of dout
    real* b = a + STAGES * TILE_ROWS * DEPTH;  // (STAGES, TILE_COLUMNS / 64, DEPTH, 64)  of weight
    int row = blockIdx.y * TILE_ROWS, column = blockIdx.x * TILE_COLUMNS;  // where its tile begins
    int y = warp_id() / 4 * 64;  // the warpgroup's first row of the tile
    int lane = lane_id(), g = lane / 4, t = lane % 4;

    auto copy = [&](int stage, int start) {  // copies zeros past the end: cheaper than a branch
        copy_tiles<TILE_ROWS, DEPTH>(a + stage * TILE_ROWS * DEPTH, dout, row, start, N, OC);
        copy_tiles<DEPTH, TILE_COLUMNS>(b + stage * TILE_COLUMNS * DEPTH, weight, start, column,
                                        OC, C);
        cp_async_commit();
    };
    for (int stage = 0; stage < STAGES - 2; stage++) {
        copy(stage, stage * DEPTH);
    }
    float sums[TILE_COLUMNS / 2] = {};  // accumulators, laid out as mma.sync's D, 4 per matrix
    for (int start = 0, stage = 0; start < OC; start += DEPTH, stage = (stage + 1) % STAGES) {
        cp_async_wait<STAGES - 3>();
        tma_store_fence();  // makes the writes visible to wgmma (async proxy)
        __syncthreads();  // this stage has arrived; the stage filled next is free again
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            wgmma_m64k16<TILE_COLUMNS, false, BLOCK * sizeof(real)>(
                sums, a + (stage * TILE_ROWS + y) * DEPTH + k,
                b + stage * TILE_COLUMNS * DEPTH + k * 64);
        }
        wgmma_commit();
        copy((stage + STAGES - 2) % STAGES, start + (STAGES - 2) * DEPTH);
        wgmma_wait<1>();
    }
    wgmma_wait<0>();

    cp_async_wait<0>();
    __syncthreads();  // copies and reads have ended before results overwrite the tiles
    real* patch = shared->at + warp_id() * 16 * STRIDE;  // (16, STRIDE)  for each warp
#pragma unroll
    for (int j = 0; j < TILE_COLUMNS / 8; j++) {
        unsigned* to = reinterpret_cast<unsigned*>(patch + g * STRIDE + j * 8 + 2 * t);
        to[0] = pack(sums[4 * j], sums[4 * j + 1]);
        to[8 * STRIDE / 2] = pack(sums[4 * j + 2], sums[4 * j + 3]);
    }
    __syncwarp();  // the results are in shared memory before other lanes read them
    int c = column + lane * VECTOR;  // 32 lanes store a row together
#pragma unroll
    for (int r = 0; r < 16; r++) {
        size_t n = row + warp_id() * 16 + r;
        if (n < N && c < C) {
            store_vec(dinp + n * C + c, load_vec(patch + r * STRIDE + lane * VECTOR));
        }
    }
}
