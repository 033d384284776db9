// matmul_gelu forward, amd rung 4: matrix cores, gelu from the accumulators
// Before: rung 3 computes with float32 multiply-adds, one or two of a lane per instruction.
//         matmul.forward amd rung 9 has AMD's matrix cores (MFMA, WMMA), double buffering, swizzled
//         shared memory, and exchanged operands.
// Change: the product of matmul.forward amd rung 9, with gelu. A lane holds runs of neighbours of a
//         row, adds the bias, and takes their gelu where they are, in registers.
// Expect: up to eight times the multiply-adds per clock on an MI300X. `pre` and `out` are written
//         with wide stores, and `pre` is not read again.
// Needs:  real in (float16, bfloat16); cdna >= 2 or rdna >= 3; C % vector == 0; OC % vector == 0
// Define: TILE = 128; DEPTH = 32; WARPS = 4; SIDE = 32 if warp == 64 else 16
// Launch: matmul_gelu_forward<<<(ceil_div(OC, TILE), ceil_div(N, TILE)), WARPS * warp>>>
// Rounds: pre, of which it takes the gelu
// After:  matmul.forward amd-9
// Left:   the matrix cores wait while a block computes its gelus and stores twice; only another
//         block on the same compute unit can fill that time.

#include "fast_math.cuh"
#include "hip/matrix_core.cuh"

constexpr int ROWS = TILE / 2, COLUMNS = TILE / 2;  // outputs of a wave, one of 2 x 2
constexpr int SHARE = TILE * DEPTH / (WARPS * WARP_SIZE * VECTOR);  // vectors of a tile per thread

constexpr int IN_ROW = DEPTH / VECTOR;  // pieces of 16 bytes, to a row of a tile

// Swizzle: the position of 16-byte piece p of a row in a tile (rows, DEPTH). Two rows cover all
// banks once, and piece p is in different banks in each of 8 rows.
__device__ __forceinline__ int place(int row, int p) {
    return row * DEPTH + (p ^ row / 2 % IN_ROW) * VECTOR;
}

constexpr float SCALE = 0.7978845608f;  // sqrt(2 / pi)
constexpr float CUBIC = 0.044715f;
constexpr float LINEAR = -2.0f * LOG2_E * SCALE;  // exp(-2u) = 2^(LINEAR * (x + CUBIC * x^3))

// (1 + tanh(u)) / 2 is the logistic function of 2u. If the power overflows to infinity, the
// quotient is 0, which is the right limit.
__device__ __forceinline__ float gelu(float x) {
    float power = fast_exp2(x * (LINEAR + LINEAR * CUBIC * x * x));  // exp(-2u)
    return __fdividef(x, 1.0f + power);
}

struct alignas(RUN * sizeof(real)) Run { real at[RUN]; };  // one load of bias, or a store

// Loads this thread's share of the tile of `matrix` (rows, C) at `row` and channel `start`.
__device__ __forceinline__ void load_tile(Vec (&share)[SHARE], const real* matrix, int row,
                                          int start, int rows, int C) {
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
        int t = (s * WARPS * WARP_SIZE + threadIdx.x) * VECTOR;
        int y = t / DEPTH, k = t % DEPTH;
        share[s] = {};  // zeros outside the matrix
        if (row + y < rows && start + k < C) {
            share[s] = load_vec(matrix + (size_t)(row + y) * C + start + k);
        }
    }
}

__device__ __forceinline__ void store_tile(real* tile, const Vec (&share)[SHARE]) {
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
        int t = (s * WARPS * WARP_SIZE + threadIdx.x) * VECTOR;
        store_vec(tile + place(t / DEPTH, t % DEPTH / VECTOR), share[s]);
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE) matmul_gelu_forward(
    real* __restrict__ out,           // (N, OC)
    real* __restrict__ pre,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC)
    int N, int C, int OC) {
    // Double buffers: one tile is multiplied while the other is filled.
    __shared__ alignas(16) real a[2][TILE * DEPTH];           // (row of the tile, channel) of inp
    __shared__ alignas(16) real b[2][TILE * DEPTH];           // (column, channel) of weight
    int row = blockIdx.y * TILE, column = blockIdx.x * TILE;  // where the block's tile begins
    int y = warp_id() / 2 * ROWS, x = warp_id() % 2 * COLUMNS;  // the wave's, within it

    Accumulator sums[ROWS / SIDE][COLUMNS / SIDE] = {};
    Vec next_a[SHARE], next_b[SHARE];
    load_tile(next_a, inp, row, 0, N, C);
    load_tile(next_b, weight, column, 0, OC, C);
    for (int start = 0, turn = 0; start < C; start += DEPTH, turn ^= 1) {
        store_tile(a[turn], next_a);
        store_tile(b[turn], next_b);
        __syncthreads();  // all threads wrote these tiles and read the pair filled next
        if (start + DEPTH < C) {
            load_tile(next_a, inp, row, start + DEPTH, N, C);
            load_tile(next_b, weight, column, start + DEPTH, OC, C);
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
        for (int e = 0; e < EACH; e += RUN) {  // a run of neighbours in a row of out
            int c = column + x + j * SIDE + d_row(e);
            if (c >= OC) break;
            Run add = *reinterpret_cast<const Run*>(bias + c);
#pragma unroll
            for (int i = 0; i < ROWS / SIDE; i++) {
                int r = row + y + i * SIDE + d_column();
                if (r >= N) break;
                Run run, gelus;
                for (int k = 0; k < RUN; k++) {
                    run.at[k] = to_real(sums[i][j][e + k] + to_float(add.at[k]));
                    gelus.at[k] = to_real(gelu(to_float(run.at[k])));
                }
                *reinterpret_cast<Run*>(pre + (size_t)r * OC + c) = run;
                *reinterpret_cast<Run*>(out + (size_t)r * OC + c) = gelus;
            }
        }
    }
}
