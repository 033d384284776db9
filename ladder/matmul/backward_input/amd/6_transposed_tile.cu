// matmul backward_input, amd rung 6: transposed on the way to shared memory
// Before: rung 5 gathers each piece of weight from shared memory with eight loads of 2 bytes.
// Change: transpose weight on its way. A thread loads 8 columns of two neighbouring rows, pairs the
//         two elements of each column, and stores the pairs (4 bytes) to the rows of a transposed
//         tile. CDNA 3 and RDNA have no counterpart of ldmatrix.trans, which would do it later.
// Expect: one load of 16 bytes for each piece instead of eight of 2, and four times as many stores
//         of weight. Each element is stored once and read twice.
// Needs:  real in (float16, bfloat16); cdna >= 2 or rdna >= 3; C % vector == 0; OC % vector == 0
// Define: TILE = 128; DEPTH = 32; WARPS = 4; SIDE = 32 if warp == 64 else 16
// Launch: matmul_backward_input<<<(ceil_div(C, TILE), ceil_div(N, TILE)), WARPS * warp>>>
// After:  amd-5
// Left:   columns 8 apart have the same banks, so half of the stores of pairs wait for the others.

#include "hip/matrix_core.cuh"

constexpr int ROWS = TILE / 2, COLUMNS = TILE / 2;  // outputs of a wave, one of 2 x 2
constexpr int SHARE = TILE * DEPTH / (WARPS * WARP_SIZE * VECTOR);  // vectors of a tile per thread
constexpr int PAIRS = DEPTH / 2;  // of neighbouring rows, in a tile of weight

constexpr int IN_ROW = DEPTH / VECTOR;  // pieces of 16 bytes, to a row of a tile

// Swizzle: the position of 16-byte piece p of a row in a tile (rows, DEPTH). Two rows cover all
// banks once, and piece p is in different banks in each of 8 rows.
__device__ __forceinline__ int place(int row, int p) {
    return row * DEPTH + (p ^ row / 2 % IN_ROW) * VECTOR;
}

struct alignas(RUN * sizeof(real)) Run { real at[RUN]; };  // one store

// Loads this thread's share of the tile of dout (N, OC) at `row` and `start`.
__device__ __forceinline__ void load_dout(Vec (&share)[SHARE], const real* dout, int row,
                                          int start, int N, int OC) {
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
        int t = (s * WARPS * WARP_SIZE + threadIdx.x) * VECTOR;
        int y = t / DEPTH, k = t % DEPTH;
        share[s] = {};  // zeros outside the matrix
        if (row + y < N && start + k < OC) {
            share[s] = load_vec(dout + (size_t)(row + y) * OC + start + k);
        }
    }
}

// The same of the tile of weight (OC, C) at row `start` and `column`: pairs of rows.
__device__ __forceinline__ void load_weight(Vec (&share)[SHARE], const real* weight, int start,
                                            int column, int OC, int C) {
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
        int t = s / 2 * WARPS * WARP_SIZE + threadIdx.x;
        int r = start + t % PAIRS * 2 + s % 2, c = column + t / PAIRS * VECTOR;
        share[s] = {};  // zeros outside the matrix
        if (r < OC && c < C) share[s] = load_vec(weight + (size_t)r * C + c);
    }
}

__device__ __forceinline__ void store_dout(real* tile, const Vec (&share)[SHARE]) {
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
        int t = (s * WARPS * WARP_SIZE + threadIdx.x) * VECTOR;
        store_vec(tile + place(t / DEPTH, t % DEPTH / VECTOR), share[s]);
    }
}

struct alignas(4) Pair { real low, high; };  // neighbours along k

// Stores pairs of rows of weight as rows (column, k).
__device__ __forceinline__ void store_weight(real* tile, const Vec (&share)[SHARE]) {
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

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE) matmul_backward_input(
    real* __restrict__ dinp,          // (N, C)
    const real* __restrict__ dout,    // (N, OC)
    const real* __restrict__ weight,  // (OC, C)
    int N, int C, int OC) {
    // Double buffers: one tile is multiplied while the other is filled.
    __shared__ alignas(16) real a[2][TILE * DEPTH];           // (row of the tile, k) of dout
    __shared__ alignas(16) real b[2][TILE * DEPTH];           // (column, k) of weight
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;  // where the block's tile begins
    int y = warp_id() / 2 * ROWS, x = warp_id() % 2 * COLUMNS;  // the wave's, within it

    Accumulator sums[ROWS / SIDE][COLUMNS / SIDE] = {};
    Vec next_a[SHARE], next_b[SHARE];
    load_dout(next_a, dout, row, 0, N, OC);
    load_weight(next_b, weight, 0, column, OC, C);
    for (int start = 0, turn = 0; start < OC; start += DEPTH, turn ^= 1) {
        store_dout(a[turn], next_a);
        store_weight(b[turn], next_b);
        __syncthreads();  // all threads wrote these tiles and read the pair filled next
        if (start + DEPTH < OC) {
            load_dout(next_a, dout, row, start + DEPTH, N, OC);
            load_weight(next_b, weight, start + DEPTH, column, OC, C);
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
    for (int j = 0; j < COLUMNS / SIDE; j++) {
#pragma unroll
        for (int e = 0; e < EACH; e += RUN) {  // a run of neighbours in a row of dinp
            int c = column + x + j * SIDE + d_row(e);
            if (c >= C) break;
#pragma unroll
            for (int i = 0; i < ROWS / SIDE; i++) {
                int r = row + y + i * SIDE + d_column();
                if (r >= N) break;
                Run run;
                for (int k = 0; k < RUN; k++) {
                    run.at[k] = to_real(sums[i][j][e + k]);
                }
                *reinterpret_cast<Run*>(dinp + (size_t)r * C + c) = run;
            }
        }
    }
}
