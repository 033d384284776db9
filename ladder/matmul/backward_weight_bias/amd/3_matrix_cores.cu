// matmul backward_weight_bias, amd rung 3: matrix cores, sums of what each thread loads
// Before: rung 2 computes with float32 multiply-adds. matmul.backward_weight amd rung 6 has AMD's
//         matrix cores (MFMA, WMMA), and tiles that are transposed on the way to shared memory.
// Change: the product of matmul.backward_weight amd rung 6, with the sums. On the way to shared
//         memory, a thread has elements of dout in registers, always of the same columns, and adds
//         them up. At the end, the lanes that load the same columns exchange their sums by
//         shuffles. Only the first block of a row of tiles does this.
// Expect: the time of that product: 16 or 32 additions of a lane for each 32 rows.
// Needs:  real in (float16, bfloat16); cdna >= 2 or rdna >= 3; C % vector == 0; OC % vector == 0
// Define: TILE = 128; DEPTH = 32; WARPS = 4; SIDE = 32 if warp == 64 else 16;
//         TILES = ceil_div(C, TILE) * ceil_div(OC, TILE);
//         SPLITS = max(1, min(ceil_div(N, 128), 2 * multiprocessors // TILES));
//         LENGTH = ceil_div(N, SPLITS)
// Launch: matmul_backward_weight_bias<<<(ceil_div(C, TILE), ceil_div(OC, TILE), SPLITS),
//         WARPS * warp>>>
// Launch: matmul_backward_weight_bias_finish<<<ceil_div(OC * C, 4 * 256), 256>>>
// Scratch: float32 partial[SPLITS, OC, C]; float32 partial_bias[SPLITS, OC]
// After:  matmul.backward_weight amd-6
// Left:   the stores of pairs to shared memory, as in that product.

#include "hip/matrix_core.cuh"

constexpr int ROWS = TILE / 2, COLUMNS = TILE / 2;  // outputs of a wave, one of 2 x 2
constexpr int SHARE = TILE * DEPTH / (WARPS * WARP_SIZE * VECTOR);  // vectors of a tile per thread
constexpr int PAIRS = DEPTH / 2;  // of neighbouring rows, in a tile

constexpr int IN_ROW = DEPTH / VECTOR;  // pieces of 16 bytes, to a row of a tile

// Swizzle: the position of 16-byte piece p of a row in a tile (rows, DEPTH). Two rows cover all
// banks once, and piece p is in different banks in each of 8 rows.
__device__ __forceinline__ int place(int row, int p) {
    return row * DEPTH + (p ^ row / 2 % IN_ROW) * VECTOR;
}

struct alignas(16) Floats { float at[4]; };  // one 16-byte load or store

// Loads this thread's share of the tile of `matrix` (stop, columns) at `row` and `column`: pairs of
// rows.
__device__ __forceinline__ void load_tile(Vec (&share)[SHARE], const real* matrix, int row,
                                          int column, int stop, int columns) {
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
        int t = s / 2 * WARPS * WARP_SIZE + threadIdx.x;
        int r = row + t % PAIRS * 2 + s % 2, c = column + t / PAIRS * VECTOR;
        share[s] = {};  // zeros outside the matrix
        if (r < stop && c < columns) share[s] = load_vec(matrix + (size_t)r * columns + c);
    }
}

// Adds the share of a tile of dout to the sums of its columns.
__device__ __forceinline__ void add_up(float (&bias)[SHARE / 2][VECTOR],
                                       const Vec (&share)[SHARE]) {
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
#pragma unroll
        for (int j = 0; j < VECTOR; j++) {
            bias[s / 2][j] += to_float(share[s][j]);
        }
    }
}

struct alignas(4) Pair { real low, high; };  // neighbours along k

// Stores pairs of rows as rows (column, k).
__device__ __forceinline__ void store_tile(real* tile, const Vec (&share)[SHARE]) {
#pragma unroll
    for (int s = 0; s < SHARE; s += 2) {
        int t = s / 2 * WARPS * WARP_SIZE + threadIdx.x, k = t % PAIRS * 2;
#pragma unroll
        for (int j = 0; j < VECTOR; j++) {
            real* to = tile + place(t / PAIRS * VECTOR + j, k / VECTOR) + k % VECTOR;
            *reinterpret_cast<Pair*>(to) = {share[s][j], share[s + 1][j]};
        }
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE) matmul_backward_weight_bias(
    float* __restrict__ dweight,    // (OC, C)  accumulates
    float* __restrict__ dbias,      // (OC)  accumulates
    const real* __restrict__ dout,  // (N, OC)
    const real* __restrict__ inp,   // (N, C)
    int N, int C, int OC,
    float* __restrict__ partial,         // (SPLITS, OC, C)  sums over the rows of each split
    float* __restrict__ partial_bias) {  // (SPLITS, OC)
    // Double buffers: one tile is multiplied while the other is filled.
    __shared__ alignas(16) real a[2][TILE * DEPTH];           // (row of the tile, k) of dout
    __shared__ alignas(16) real b[2][TILE * DEPTH];           // (column of the tile, k) of inp
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;  // where the block's tile begins
    int y = warp_id() / 2 * ROWS, x = warp_id() % 2 * COLUMNS;  // the wave's, within it
    int first = blockIdx.z * LENGTH, stop = min(N, first + LENGTH);  // rows of the split

    Accumulator sums[ROWS / SIDE][COLUMNS / SIDE] = {};
    float bias[SHARE / 2][VECTOR] = {};  // of the columns that this thread loads
    Vec next_a[SHARE], next_b[SHARE];
    load_tile(next_a, dout, first, row, stop, OC);
    load_tile(next_b, inp, first, column, stop, C);
    for (int start = first, turn = 0; start < stop; start += DEPTH, turn ^= 1) {
        if (column == 0) add_up(bias, next_a);
        store_tile(a[turn], next_a);
        store_tile(b[turn], next_b);
        __syncthreads();  // all threads wrote these tiles and read the pair filled next
        if (start + DEPTH < stop) {
            load_tile(next_a, dout, start + DEPTH, row, stop, OC);
            load_tile(next_b, inp, start + DEPTH, column, stop, C);
        }
#pragma unroll
        for (int k = 0; k < DEPTH; k += STEP) {
            Fragment bs[COLUMNS / SIDE];
#pragma unroll
            for (int j = 0; j < COLUMNS / SIDE; j++) {
                bs[j] = load_a<place>(b[turn], x + j * SIDE, k);
            }
#pragma unroll
            for (int i = 0; i < ROWS / SIDE; i++) {
                Fragment as = load_b<place>(a[turn], y + i * SIDE, k);
#pragma unroll
                for (int j = 0; j < COLUMNS / SIDE; j++) multiply_add(sums[i][j], bs[j], as);
            }
        }
    }

#pragma unroll
    for (int s = 0; s < SHARE / 2 && column == 0; s++) {
        int t = s * WARPS * WARP_SIZE + threadIdx.x, feature = row + t / PAIRS * VECTOR;
#pragma unroll
        for (int j = 0; j < VECTOR; j++) {
            float sum = bias[s][j];
            for (int distance = PAIRS / 2; distance > 0; distance /= 2) {
                sum += shuffle_xor(sum, distance);  // PAIRS lanes load the same columns
            }
            if (t % PAIRS == 0 && feature < OC) {
                partial_bias[(size_t)blockIdx.z * OC + feature + j] = sum;
            }
        }
    }
#pragma unroll
    for (int j = 0; j < COLUMNS / SIDE; j++) {
#pragma unroll
        for (int e = 0; e < EACH; e += 4) {  // four neighbours in a row of dweight
            int c = column + x + j * SIDE + d_row(e);
            if (c >= C) break;
#pragma unroll
            for (int i = 0; i < ROWS / SIDE; i++) {
                int r = row + y + i * SIDE + d_column();
                if (r >= OC) break;
                const Accumulator& of = sums[i][j];
                Floats four = {of[e], of[e + 1], of[e + 2], of[e + 3]};
                *reinterpret_cast<Floats*>(partial + ((size_t)blockIdx.z * OC + r) * C + c) = four;
            }
        }
    }
}

// Adds the partial sums to dweight and dbias; a thread adds four neighbours of dweight.
extern "C" __global__ void matmul_backward_weight_bias_finish(
    float* __restrict__ dweight, float* __restrict__ dbias, int N, int C, int OC,
    const float* __restrict__ partial, const float* __restrict__ partial_bias) {
    size_t thread = (size_t)blockIdx.x * 256 + threadIdx.x, index = thread * 4;
    size_t size = (size_t)OC * C;  // there are more threads than OC, since C is at least 4
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
    if (thread >= OC) return;
    float bias = dbias[thread];
    for (int split = 0; split < SPLITS; split++) {
        bias += partial_bias[(size_t)split * OC + thread];
    }
    dbias[thread] = bias;
}
