// matmul backward_input, amd rung 5: matrix cores, MN-major operand gathered
// Before: rung 4 computes with float32 multiply-adds, one or two of a lane per instruction.
//         matmul.forward amd rung 9 has AMD's matrix cores (MFMA, WMMA), double buffering, swizzled
//         shared memory, and exchanged operands.
// Change: the product of matmul.forward amd rung 9. But weight has its columns as neighbours and is
//         summed over its rows: it is MN-major, where the instructions want K-major. So a lane
//         gathers its elements of weight one by one.
// Expect: up to eight times the multiply-adds per clock on an MI300X, if loads of 2 bytes could
//         feed them: eight of them instead of one for each piece of weight.
// Needs:  real in (float16, bfloat16); cdna >= 2 or rdna >= 3; C % vector == 0; OC % vector == 0
// Define: TILE = 128; DEPTH = 32; WARPS = 4; SIDE = 32 if warp == 64 else 16
// Launch: matmul_backward_input<<<(ceil_div(C, TILE), ceil_div(N, TILE)), WARPS * warp>>>
// After:  matmul.forward amd-9
// Left:   loads of 2 bytes from shared memory -> rung 6.

#include "hip/matrix_core.cuh"

constexpr int ROWS = TILE / 2, COLUMNS = TILE / 2;  // outputs of a wave, one of 2 x 2
constexpr int SHARE = TILE * DEPTH / (WARPS * WARP_SIZE * VECTOR);  // vectors of a tile per thread

constexpr int IN_ROW = DEPTH / VECTOR;  // pieces of 16 bytes, to a row of a tile

// Swizzle: the position of 16-byte piece p of a row in a tile (rows, DEPTH). Two rows cover all
// banks once, and piece p is in different banks in each of 8 rows.
__device__ __forceinline__ int place(int row, int p) {
    return row * DEPTH + (p ^ row / 2 % IN_ROW) * VECTOR;
}

struct alignas(RUN * sizeof(real)) Run { real at[RUN]; };  // one store

// Loads this thread's share of a tile of `matrix` (rows, columns) that begins at `row` and
// `column`, and is WIDE elements wide.
template <int WIDE>
__device__ __forceinline__ void load_tile(Vec (&share)[SHARE], const real* matrix, int row,
                                          int column, int rows, int columns) {
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
        int t = (s * WARPS * WARP_SIZE + threadIdx.x) * VECTOR;
        int r = row + t / WIDE, c = column + t % WIDE;
        share[s] = {};  // zeros outside the matrix
        if (r < rows && c < columns) share[s] = load_vec(matrix + (size_t)r * columns + c);
    }
}

// Stores it into a tile of dout (TILE, DEPTH), or a tile of weight (DEPTH, TILE).
__device__ __forceinline__ void store_dout(real* tile, const Vec (&share)[SHARE]) {
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
        int t = (s * WARPS * WARP_SIZE + threadIdx.x) * VECTOR;
        store_vec(tile + place(t / DEPTH, t % DEPTH / VECTOR), share[s]);
    }
}
__device__ __forceinline__ void store_weight(real* tile, const Vec (&share)[SHARE]) {
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
        store_vec(tile + (s * WARPS * WARP_SIZE + threadIdx.x) * VECTOR, share[s]);
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE) matmul_backward_input(
    real* __restrict__ dinp,          // (N, C)
    const real* __restrict__ dout,    // (N, OC)
    const real* __restrict__ weight,  // (OC, C)
    int N, int C, int OC) {
    // Double buffers: one tile is multiplied while the other is filled.
    __shared__ alignas(16) real a[2][TILE * DEPTH];           // (row of the tile, k) of dout
    __shared__ alignas(16) real b[2][DEPTH * TILE];           // (k, column) of weight
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;  // where the block's tile begins
    int y = warp_id() / 2 * ROWS, x = warp_id() % 2 * COLUMNS;  // the wave's, within it

    Accumulator sums[ROWS / SIDE][COLUMNS / SIDE] = {};
    Vec next_a[SHARE], next_b[SHARE];
    load_tile<DEPTH>(next_a, dout, row, 0, N, OC);
    load_tile<TILE>(next_b, weight, 0, column, OC, C);
    for (int start = 0, turn = 0; start < OC; start += DEPTH, turn ^= 1) {
        store_dout(a[turn], next_a);
        store_weight(b[turn], next_b);
        __syncthreads();  // all threads wrote these tiles and read the pair filled next
        if (start + DEPTH < OC) {
            load_tile<DEPTH>(next_a, dout, row, start + DEPTH, N, OC);
            load_tile<TILE>(next_b, weight, start + DEPTH, column, OC, C);
        }
#pragma unroll
        for (int k = 0; k < DEPTH; k += STEP) {
            Fragment bs[COLUMNS / SIDE];
#pragma unroll
            for (int j = 0; j < COLUMNS / SIDE; j++) {
                bs[j] = gather_a<TILE>(b[turn], x + j * SIDE, k);
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
