// matmul backward_weight, 16bit rung 9: cp.async multistage pipeline, swizzled shared memory
// Before: in rung 8, a tile has the time of one step to arrive, and occupies registers meanwhile.
// Change: cp.async copies from memory to shared memory without using registers. STAGES tiles form a
//         pipeline: a ring of buffers, filled up to three steps ahead. Rows are swizzled instead of
//         padded: the 16-byte pieces of a row are permuted, differently in each of 8 rows, so that
//         they lie in different banks.
// Expect: a load has the time of three steps; registers are free, and the loop contains no stores.
// Needs:  real in (float16, bfloat16); sm >= 80; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE = 128; DEPTH = 32; WARPS = 8; STAGES = min(4, shared_bytes // 2 // 16384);
//         SHARED = STAGES * 2 * TILE * DEPTH * sizeof_real;
//         TILES = ceil_div(C, TILE) * ceil_div(OC, TILE);
//         SPLITS = max(1, min(ceil_div(N, 128), 4 * multiprocessors // TILES));
//         LENGTH = ceil_div(N, SPLITS)
// Launch: matmul_backward_weight<<<(ceil_div(C, TILE), ceil_div(OC, TILE), SPLITS), WARPS * warp,
//         SHARED>>>
// Launch: matmul_backward_weight_finish<<<ceil_div(OC * C, 4 * 256), 256>>>
// Scratch: float32 partial[SPLITS, OC, C]
// After:  16bit-8
// Left:   shared memory bandwidth: a warp reads 96 rows of 16 elements for 64 x 32 outputs -> rung
//         10.

#include "async.cuh"
#include "mma_real.cuh"

struct alignas(16) Floats { float at[4]; };  // one 16-byte load or store
struct alignas(8) Pair { float at[2]; };

constexpr int ROWS = 64, COLUMNS = 32;  // outputs of a warp; the warps form a 2 x 4 grid

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

// The launch bounds limit registers so that two blocks fit on an SM.
extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE, 2) matmul_backward_weight(
    float* __restrict__ dweight,    // (OC, C)  accumulates
    const real* __restrict__ dout,  // (N, OC)
    const real* __restrict__ inp,   // (N, C)
    int N, int C, int OC,
    float* __restrict__ partial) {  // (SPLITS, OC, C)  sums over the rows of each split
    extern __shared__ Vec shared[];
    real* a = shared->at;                 // (STAGES, row of dout, row of the tile)
    real* b = a + STAGES * DEPTH * TILE;  // (STAGES, row of inp, column of the tile)
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;        // where the block's tile begins
    int first = blockIdx.z * LENGTH, end = min(first + LENGTH, N);  // its rows of dout and inp
    int y = warp_id() / 4 * ROWS, x = warp_id() % 4 * COLUMNS;      // the warp's, within the tile
    int lane = lane_id(), g = lane / 4, t = lane % 4;

    float sums[ROWS / 16][COLUMNS / 8][4] = {};  // accumulators: D matrices of 16 x 8
    for (int stage = 0; stage < STAGES - 1; stage++) {
        copy_tile<TILE>(a + stage * DEPTH * TILE, dout, first + stage * DEPTH, row, end, OC);
        copy_tile<TILE>(b + stage * DEPTH * TILE, inp, first + stage * DEPTH, column, end, C);
        cp_async_commit();
    }
    for (int start = first, stage = 0; start < end; start += DEPTH, stage = (stage + 1) % STAGES) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // all copies have arrived; all threads have read the stage filled next
        int ahead = start + (STAGES - 1) * DEPTH, filled = (stage + STAGES - 1) % STAGES;
        if (ahead < end) {
            copy_tile<TILE>(a + filled * DEPTH * TILE, dout, ahead, row, end, OC);
            copy_tile<TILE>(b + filled * DEPTH * TILE, inp, ahead, column, end, C);
        }
        cp_async_commit();  // may be empty: cp_async_wait counts groups
        const real *tile_a = a + stage * DEPTH * TILE, *tile_b = b + stage * DEPTH * TILE;
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            unsigned bs[COLUMNS / 16][4];  // two B matrices each
#pragma unroll
            for (int j = 0; j < COLUMNS / 16; j++) {
                int p = x / 8 + j * 2 + lane / 16;
                ldmatrix_x4_trans(bs[j], tile_b + place<TILE>(k + lane % 16, p));
            }
#pragma unroll
            for (int i = 0; i < ROWS / 16; i++) {
                unsigned as[4];
                int r = k + lane / 16 * 8 + lane % 8, p = y / 8 + i * 2 + lane / 8 % 2;
                ldmatrix_x4_trans(as, tile_a + place<TILE>(r, p));
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
