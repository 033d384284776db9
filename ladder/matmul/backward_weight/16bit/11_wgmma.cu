// matmul backward_weight, 16bit rung 11: wgmma (warpgroup matrix multiply)
// Before: in rung 10, every warp reads fragments into registers before it multiplies them. mma.sync
//         cannot feed Hopper's tensor cores fast enough in this way.
// Change: wgmma (warpgroup matrix multiply). Four warps, a warpgroup, together multiply 64 x 16 by
//         16 x 256 elements. The tensor cores read them from shared memory themselves, and the
//         instruction returns at once. It can sum over the rows of its tiles, as this product does:
//         both are MN-major (transposed) operands. Their tiles must be 64 columns wide: a stage
//         holds 2 of dout and 4 of inp, of 64 rows.
// Expect: fragments need no registers and no load instructions, and shared memory delivers five
//         eighths of the bytes. Closer to the library, which uses this instruction.
// Needs:  real in (float16, bfloat16); sm == 90; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE_ROWS = 128; TILE_COLUMNS = 256; DEPTH = 64; WARPS = 8; STAGES = 4; WAVES = 3;
//         SHARED = STAGES * (TILE_ROWS + TILE_COLUMNS) * DEPTH * sizeof_real;
//         TILES = ceil_div(C, TILE_COLUMNS) * ceil_div(OC, TILE_ROWS);
//         SPLITS = max(1, min(ceil_div(N, 128), WAVES * multiprocessors // TILES));
//         LENGTH = ceil_div(N, SPLITS)
// Launch: matmul_backward_weight<<<(ceil_div(C, TILE_COLUMNS), ceil_div(OC, TILE_ROWS), SPLITS),
//         WARPS * warp, SHARED>>>
// Launch: matmul_backward_weight_finish<<<ceil_div(OC * C, 4 * 256), 256>>>
// Scratch: float32 partial[SPLITS, OC, C]
// After:  16bit-10
// Left:   the last of its three waves of blocks is not full, and every block stores partial sums of
//         a whole tile -> rung 12.

#include "async.cuh"
#include "wgmma_real.cuh"

struct alignas(16) Floats { float at[4]; };  // one 16-byte load or store
struct alignas(8) Pair { float at[2]; };

constexpr int BLOCK = DEPTH * 64;  // elements of a tile of 64 columns

// Swizzle: the position of 16-byte piece p of a row in tiles of DEPTH rows, as wgmma expects it.
__device__ __forceinline__ int place(int row, int p) {
    return p / 8 * BLOCK + row * 64 + (p % 8 ^ row % 8) * VECTOR;
}

// Starts to copy a tile of `matrix` (rows, columns) at (row, column); zeros outside it.
template <int WIDTH>  // of the tiles, side by side
__device__ __forceinline__ void copy_tiles(real* tiles, const real* matrix, int row, int column,
                                           int rows, int columns) {
    constexpr int PIECES = WIDTH / VECTOR;            // 16-byte pieces per row
    constexpr int STEP = WARPS * WARP_SIZE / PIECES;  // rows that the block copies at once
    int y = threadIdx.x / PIECES, p = threadIdx.x % PIECES, c = column + p * VECTOR;
    const real* from = matrix + (size_t)(row + y) * columns + c;
    real* to = tiles + place(y, p);
#pragma unroll
    for (int s = 0; s < DEPTH; s += STEP) {  // STEP is a multiple of 8: the swizzle repeats
        cp_async_16_or_zero(to + s * 64, from + (size_t)s * columns,
                            row + y + s < rows && c < columns);
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE) matmul_backward_weight(
    float* __restrict__ dweight,    // (OC, C)  accumulates
    const real* __restrict__ dout,  // (N, OC)
    const real* __restrict__ inp,   // (N, C)
    int N, int C, int OC,
    float* __restrict__ partial) {  // (SPLITS, OC, C)  sums over the rows of each split
    extern __shared__ __align__(1024) Vec shared[];
    real* a = shared->at;                      // (STAGES, TILE_ROWS / 64, DEPTH, 64)     of dout
    real* b = a + STAGES * TILE_ROWS * DEPTH;  // (STAGES, TILE_COLUMNS / 64, DEPTH, 64)  of inp
    int row = blockIdx.y * TILE_ROWS, column = blockIdx.x * TILE_COLUMNS;  // where its tile begins
    int first = blockIdx.z * LENGTH, end = min(first + LENGTH, N);         // rows of dout and inp
    int group = warp_id() / 4;  // the warpgroup; each multiplies its own tile of dout
    int lane = lane_id(), g = lane / 4, t = lane % 4;

    auto copy = [&](int stage, int start) {  // copies zeros past the end: cheaper than a branch
        copy_tiles<TILE_ROWS>(a + stage * TILE_ROWS * DEPTH, dout, start, row, end, OC);
        copy_tiles<TILE_COLUMNS>(b + stage * TILE_COLUMNS * DEPTH, inp, start, column, end, C);
        cp_async_commit();
    };
    for (int stage = 0; stage < STAGES - 2; stage++) {
        copy(stage, first + stage * DEPTH);
    }
    float sums[TILE_COLUMNS / 2] = {};  // accumulators, laid out as mma.sync's D, 4 per matrix
    for (int start = first, stage = 0; start < end; start += DEPTH, stage = (stage + 1) % STAGES) {
        cp_async_wait<STAGES - 3>();
        tma_store_fence();  // makes the writes visible to wgmma (async proxy)
        __syncthreads();  // this stage has arrived; the stage filled next is free again
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            wgmma_m64k16<TILE_COLUMNS, true, BLOCK * sizeof(real)>(
                sums, a + stage * TILE_ROWS * DEPTH + group * BLOCK + k * 64,
                b + stage * TILE_COLUMNS * DEPTH + k * 64);
        }
        wgmma_commit();
        copy((stage + STAGES - 2) % STAGES, start + (STAGES - 2) * DEPTH);
        wgmma_wait<1>();
    }
    wgmma_wait<0>();

    int r = row + warp_id() * 16 + g;
#pragma unroll
    for (int j = 0; j < TILE_COLUMNS / 8; j++) {
        int c = column + j * 8 + 2 * t;
        if (c >= C) break;
        float* to = partial + ((size_t)blockIdx.z * OC + r) * C + c;
        if (r < OC) *reinterpret_cast<Pair*>(to) = {sums[4 * j], sums[4 * j + 1]};
        to += 8 * (size_t)C;
        if (r + 8 < OC) *reinterpret_cast<Pair*>(to) = {sums[4 * j + 2], sums[4 * j + 3]};
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
