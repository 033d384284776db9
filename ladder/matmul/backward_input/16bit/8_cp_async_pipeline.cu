// matmul backward_input, 16bit rung 8: cp.async multistage pipeline, swizzled shared memory
// Before: in rung 7, a tile has the time of one step to arrive, and occupies registers meanwhile.
// Change: cp.async copies from memory to shared memory without using registers. STAGES tiles form a
//         pipeline: a ring of buffers, filled up to three steps ahead. Rows are swizzled instead of
//         padded: the 16-byte pieces of a row are permuted, differently in each of 8 rows, so that
//         they lie in different banks.
// Expect: a load has the time of three steps; registers are free, and the loop contains no stores.
// Needs:  real in (float16, bfloat16); sm >= 80; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE = 128; DEPTH = 32; WARPS = 8; STAGES = min(4, shared_bytes // 2 // 16384);
//         SHARED = STAGES * 2 * TILE * DEPTH * sizeof_real
// Launch: matmul_backward_input<<<(ceil_div(C, TILE), ceil_div(N, TILE)), WARPS * warp, SHARED>>>
// After:  16bit-7
// Left:   shared memory bandwidth: a warp reads 96 rows of 16 elements for 64 x 32 outputs -> rung
//         9.

#include "async.cuh"
#include "mma_real.cuh"

constexpr int ROWS = 64, COLUMNS = 32;  // outputs of a warp; the warps form a 2 x 4 grid

// Swizzle: the position of 16-byte piece p of a row in a tile of WIDTH columns. It is in different
// banks in each of 8 rows, since ldmatrix reads the piece from 8 rows at once.
template <int WIDTH>
__device__ __forceinline__ int place(int row, int p) {
    constexpr int TURN = WIDTH < 64 ? WIDTH / VECTOR : 8;  // in pieces: 8 pieces fill the 32 banks
    return row * WIDTH + (p ^ row / (8 / TURN) % TURN) * VECTOR;
}

// Starts to copy a tile of `matrix` (rows, columns) at (row, column); zeros outside it.
template <int HEIGHT, int WIDTH>  // of the tile
__device__ __forceinline__ void copy_tile(real* tile, const real* matrix, int row, int column,
                                          int rows, int columns) {
    constexpr int PIECES = WIDTH / VECTOR;            // 16-byte pieces per row
    constexpr int STEP = WARPS * WARP_SIZE / PIECES;  // rows that the block copies at once
    int y = threadIdx.x / PIECES, p = threadIdx.x % PIECES, c = column + p * VECTOR;
    const real* from = matrix + (size_t)(row + y) * columns + c;
    real* to = tile + place<WIDTH>(y, p);
#pragma unroll
    for (int s = 0; s < HEIGHT; s += STEP) {  // STEP is a multiple of 8: the swizzle repeats
        cp_async_16_or_zero(to + s * WIDTH, from + (size_t)s * columns,
                            row + y + s < rows && c < columns);
    }
}

// The launch bounds limit registers so that two blocks fit on an SM.
extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE, 2) matmul_backward_input(
    real* __restrict__ dinp,          // (N, C)
    const real* __restrict__ dout,    // (N, OC)
    const real* __restrict__ weight,  // (OC, C)
    int N, int C, int OC) {
    extern __shared__ Vec shared[];
    real* a = shared->at;                 // (STAGES, row of the tile, feature)     of dout
    real* b = a + STAGES * TILE * DEPTH;  // (STAGES, feature, column of the tile)  of weight
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;    // where the block's tile begins
    int y = warp_id() / 4 * ROWS, x = warp_id() % 4 * COLUMNS;  // the warp's, within it
    int lane = lane_id(), g = lane / 4, t = lane % 4;

    float sums[ROWS / 16][COLUMNS / 8][4] = {};  // accumulators: D matrices of 16 x 8
    for (int stage = 0; stage < STAGES - 1; stage++) {
        copy_tile<TILE, DEPTH>(a + stage * TILE * DEPTH, dout, row, stage * DEPTH, N, OC);
        copy_tile<DEPTH, TILE>(b + stage * TILE * DEPTH, weight, stage * DEPTH, column, OC, C);
        cp_async_commit();
    }
    for (int start = 0, stage = 0; start < OC; start += DEPTH, stage = (stage + 1) % STAGES) {
        cp_async_wait<STAGES - 2>();
        __syncthreads();  // all copies have arrived; all threads have read the stage filled next
        int ahead = start + (STAGES - 1) * DEPTH, filled = (stage + STAGES - 1) % STAGES;
        if (ahead < OC) {
            copy_tile<TILE, DEPTH>(a + filled * TILE * DEPTH, dout, row, ahead, N, OC);
            copy_tile<DEPTH, TILE>(b + filled * TILE * DEPTH, weight, ahead, column, OC, C);
        }
        cp_async_commit();  // may be empty: cp_async_wait counts groups
        const real *tile_a = a + stage * TILE * DEPTH, *tile_b = b + stage * TILE * DEPTH;
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
                int r = y + i * 16 + lane % 16;
                ldmatrix_x4(as, tile_a + place<DEPTH>(r, k / 8 + lane / 16));
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
            if (r >= N) break;
            const float* pair = &sums[i / 2][j][i % 2 * 2];
            *reinterpret_cast<unsigned*>(dinp + (size_t)r * C + c) = pack(pair[0], pair[1]);
        }
    }
}
