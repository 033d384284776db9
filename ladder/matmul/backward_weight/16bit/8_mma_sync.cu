// matmul backward_weight, 16bit rung 8: mma.sync with ldmatrix
// Before: in rung 7, wmma decides how a warp's elements come from shared memory: in bfloat16, with
//         scattered loads of 4 bytes. The results take a detour through shared memory, because only
//         wmma knows which lane holds which element.
// Change: mma.sync and ldmatrix, instructions whose fragments (the part of a matrix that each lane
//         holds) are documented. One ldmatrix loads four 8 x 8 matrices for a warp, 16 bytes per
//         lane. Lanes store their results straight from registers. A and B matrices are both summed
//         over the rows of a tile, so ldmatrix transposes them (.trans).
// Expect: a quarter of the loads from shared memory in bfloat16, and no detour at the end.
// Needs:  real in (float16, bfloat16); sm >= 80; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE = 128; DEPTH = 32; WARPS = 8;
//         TILES = ceil_div(C, TILE) * ceil_div(OC, TILE);
//         SPLITS = max(1, min(ceil_div(N, 128), 4 * multiprocessors // TILES));
//         LENGTH = ceil_div(N, SPLITS)
// Launch: matmul_backward_weight<<<(ceil_div(C, TILE), ceil_div(OC, TILE), SPLITS), WARPS * warp>>>
// Launch: matmul_backward_weight_finish<<<ceil_div(OC * C, 4 * 256), 256>>>
// Scratch: float32 partial[SPLITS, OC, C]
// After:  16bit-7
// Left:   tiles go through registers to shared memory, only one step ahead -> rung
//         9.

#include "mma_real.cuh"

struct alignas(16) Floats { float at[4]; };  // one 16-byte load or store
struct alignas(8) Pair { float at[2]; };

constexpr int ROWS = 64, COLUMNS = 32;  // outputs of a warp; the warps form a 2 x 4 grid
constexpr int STRIDE = TILE + 8;        // padded: 8 rows of a tile begin in different banks
constexpr int SHARE = TILE * DEPTH / (WARPS * WARP_SIZE * VECTOR);  // vectors of a tile per thread

// Loads this thread's share of the tile of `matrix` (rows, columns) at (row, column).
__device__ __forceinline__ void load_tile(Vec (&share)[SHARE], const real* matrix, int row,
                                          int column, int rows, int columns) {
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
        int t = (s * WARPS * WARP_SIZE + threadIdx.x) * VECTOR;
        int r = row + t / TILE, c = column + t % TILE;
        share[s] = {};  // zeros outside the matrix
        if (r < rows && c < columns) share[s] = load_vec(matrix + (size_t)r * columns + c);
    }
}

__device__ __forceinline__ void store_tile(real* tile, const Vec (&share)[SHARE]) {
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
        int t = (s * WARPS * WARP_SIZE + threadIdx.x) * VECTOR;
        store_vec(tile + t / TILE * STRIDE + t % TILE, share[s]);
    }
}

// The launch bounds limit registers so that two blocks fit on an SM.
extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE, 2) matmul_backward_weight(
    float* __restrict__ dweight,    // (OC, C)  accumulates
    const real* __restrict__ dout,  // (N, OC)
    const real* __restrict__ inp,   // (N, C)
    int N, int C, int OC,
    float* __restrict__ partial) {  // (SPLITS, OC, C)  sums over the rows of each split
    // Double buffers: one tile is multiplied while the other is filled.
    __shared__ alignas(16) real a[2][DEPTH * STRIDE];         // (row of dout, row of the tile)
    __shared__ alignas(16) real b[2][DEPTH * STRIDE];         // (row of inp, column of the tile)
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;  // where the block's tile begins
    int first = blockIdx.z * LENGTH, end = min(first + LENGTH, N);  // its rows of dout and inp
    int y = warp_id() / 4 * ROWS, x = warp_id() % 4 * COLUMNS;      // the warp's, within the tile
    int lane = lane_id(), g = lane / 4, t = lane % 4;

    float sums[ROWS / 16][COLUMNS / 8][4] = {};  // accumulators: D matrices of 16 x 8
    Vec next_a[SHARE], next_b[SHARE];
    load_tile(next_a, dout, first, row, end, OC);
    load_tile(next_b, inp, first, column, end, C);
    for (int start = first, turn = 0; start < end; start += DEPTH, turn ^= 1) {
        store_tile(a[turn], next_a);
        store_tile(b[turn], next_b);
        __syncthreads();  // all threads wrote these tiles and read the pair filled next
        if (start + DEPTH < end) {
            load_tile(next_a, dout, start + DEPTH, row, end, OC);
            load_tile(next_b, inp, start + DEPTH, column, end, C);
        }
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            unsigned bs[COLUMNS / 16][4];  // two B matrices each
#pragma unroll
            for (int j = 0; j < COLUMNS / 16; j++) {
                int c = x + j * 16 + lane / 16 * 8;
                ldmatrix_x4_trans(bs[j], b[turn] + (k + lane % 16) * STRIDE + c);
            }
#pragma unroll
            for (int i = 0; i < ROWS / 16; i++) {
                unsigned as[4];
                int r = k + lane / 16 * 8 + lane % 8;
                ldmatrix_x4_trans(as, a[turn] + r * STRIDE + y + i * 16 + lane / 8 % 2 * 8);
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
