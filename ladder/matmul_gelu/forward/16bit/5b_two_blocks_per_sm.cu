// matmul_gelu forward, 16bit rung 5b: two blocks per SM
// Before: in rung 5, an SM has only one block. While its warps compute gelus and store out and pre,
//         nothing is multiplied.
// Change: half a block: four warps for 128 x 128 outputs; a warp keeps its 64 x 64. Three stages of
//         16 KB leave room for two blocks, even in the 100 KB of an SM of sm_86, sm_89 or sm_120.
//         One multiplies while the other computes gelus and stores.
// Expect: the ends of blocks hide behind products. A block reads 128 + 128 rows for 128 x 128
//         outputs instead of 128 + 256 for 128 x 256: a third more bytes from L2 for a product.
// Needs:  real in (float16, bfloat16); sm >= 80; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE_ROWS = 128; TILE_COLUMNS = 128; DEPTH = 32; WARPS = 4; GROUP = 8; STAGES = 3;
//         SHARED = STAGES * (TILE_ROWS + TILE_COLUMNS) * DEPTH * sizeof_real
// Launch: matmul_gelu_forward<<<ceil_div(OC, TILE_COLUMNS) * ceil_div(N, TILE_ROWS), WARPS * warp,
//         SHARED>>>
// Rounds: pre, of which it takes the gelu
// After:  16bit-5
// Left:   on Hopper, mma.sync cannot keep the tensor cores busy -> rung 8.

#include "async.cuh"
#include "fast_math.cuh"
#include "mma_real.cuh"

constexpr int ROWS = 64, COLUMNS = 64;  // outputs of a warp; the warps form a 2 x 2 grid
constexpr int PIECES = DEPTH / VECTOR;  // of 16 bytes, to a row of a tile
constexpr int STEP = WARPS * WARP_SIZE / PIECES;  // rows that the block copies at once
constexpr int STRIDE = COLUMNS + VECTOR;  // padded: 8 rows of results begin in different banks

constexpr float SCALE = 0.7978845608f;  // sqrt(2 / pi)
constexpr float CUBIC = 0.044715f;
constexpr float LINEAR = -2.0f * LOG2_E * SCALE;  // exp(-2u) = 2^(LINEAR * (x + CUBIC * x^3))

// (1 + tanh(u)) / 2 is the logistic function of 2u. If the power overflows to infinity, the
// quotient is 0, which is the right limit.
__device__ __forceinline__ float gelu(float x) {
    float power = fast_exp2(x * (LINEAR + LINEAR * CUBIC * x * x));  // exp(-2u)
    return __fdividef(x, 1.0f + power);
}

// Swizzle: the position of 16-byte piece p of a row in a tile (rows, DEPTH). Two rows cover all
// banks once, and piece p is in different banks in each of 8 rows.
__device__ __forceinline__ int place(int row, int p) {
    return row * DEPTH + (p ^ row / 2 % PIECES) * VECTOR;
}

// Starts to copy a tile of `matrix` (rows, C) at `row` and channel `start`; zeros outside it.
template <int HEIGHT>  // of the tile
__device__ __forceinline__ void copy_tile(real* tile, const real* matrix, int row, int start,
                                          int rows, int C) {
    int y = threadIdx.x / PIECES, p = threadIdx.x % PIECES, k = start + p * VECTOR;
    const real* from = matrix + (size_t)(row + y) * C + k;
    real* to = tile + place(y, p);
#pragma unroll
    for (int s = 0; s < HEIGHT; s += STEP) {  // STEP is a multiple of 8: the swizzle repeats
        cp_async_16_or_zero(to + s * DEPTH, from + (size_t)s * C, row + y + s < rows && k < C);
    }
}

// A warp's fragments (what its lanes hold of A and B matrices) of 16 channels.
struct Fragments {
    unsigned a[ROWS / 16][4];     // A matrices
    unsigned b[COLUMNS / 16][4];  // B matrices, in pairs

    // Loads them from a tile of inp and a tile of weight. The warp's rows begin at `y` and at `x`.
    __device__ __forceinline__ void load(const real* tile_a, const real* tile_b, int y, int x,
                                         int k) {
        int lane = lane_id();
#pragma unroll
        for (int i = 0; i < ROWS / 16; i++) {
            ldmatrix_x4(a[i], tile_a + place(y + i * 16 + lane % 16, k / 8 + lane / 16));
        }
#pragma unroll
        for (int j = 0; j < COLUMNS / 16; j++) {
            int r = x + j * 16 + lane / 16 * 8 + lane % 8;
            ldmatrix_x4(b[j], tile_b + place(r, k / 8 + lane / 8 % 2));
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

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE, 2) matmul_gelu_forward(
    real* __restrict__ out,           // (N, OC)
    real* __restrict__ pre,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC)
    int N, int C, int OC) {
    extern __shared__ Vec shared[];
    real* a = shared->at;                      // (STAGES, TILE_ROWS, DEPTH)     of inp
    real* b = a + STAGES * TILE_ROWS * DEPTH;  // (STAGES, TILE_COLUMNS, DEPTH)  of weight
    int high = (N + TILE_ROWS - 1) / TILE_ROWS, wide = (OC + TILE_COLUMNS - 1) / TILE_COLUMNS;
    int top = blockIdx.x / (GROUP * wide) * GROUP, of_group = blockIdx.x % (GROUP * wide);
    int rows = min(GROUP, high - top);  // rows of tiles in this group
    int row = (top + of_group % rows) * TILE_ROWS;  // where the block's tile begins
    int column = of_group / rows * TILE_COLUMNS;
    int y = warp_id() / 2 * ROWS, x = warp_id() % 2 * COLUMNS;  // the warp's, within it
    int lane = lane_id(), g = lane / 4, t = lane % 4;

    auto copy = [&](int stage, int start) {  // copies zeros past the end: cheaper than a branch
        copy_tile<TILE_ROWS>(a + stage * TILE_ROWS * DEPTH, inp, row, start, N, C);
        copy_tile<TILE_COLUMNS>(b + stage * TILE_COLUMNS * DEPTH, weight, column, start, OC, C);
        cp_async_commit();
    };
    for (int stage = 0; stage < STAGES; stage++) {
        copy(stage, stage * DEPTH);
    }
    float sums[ROWS / 16][COLUMNS / 8][4] = {};  // accumulators: D matrices of 16 x 8
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j++) {
        int c = column + x + j * 8 + 2 * t;
        if (c >= OC) break;
#pragma unroll
        for (int i = 0; i < ROWS / 16; i++) {
            sums[i][j][0] = sums[i][j][2] = to_float(bias[c]);
            sums[i][j][1] = sums[i][j][3] = to_float(bias[c + 1]);
        }
    }
    cp_async_wait<STAGES - 1>();
    __syncthreads();  // all copies to stage 0 have arrived before any warp reads it

    Fragments now, next;
    now.load(a, b, y, x, 0);
    for (int start = 0, stage = 0; start < C; start += DEPTH) {
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            if (k + 16 < DEPTH) {
                next.load(a + stage * TILE_ROWS * DEPTH, b + stage * TILE_COLUMNS * DEPTH, y, x,
                          k + 16);
            } else {
                cp_async_wait<STAGES - 2>();
                __syncthreads();  // the next stage has arrived; all warps have read this one
                copy(stage, start + STAGES * DEPTH);
                stage = (stage + 1) % STAGES;
                next.load(a + stage * TILE_ROWS * DEPTH, b + stage * TILE_COLUMNS * DEPTH, y, x, 0);
            }
            now.multiply(sums);
            now = next;
        }
    }

    cp_async_wait<0>();
    __syncthreads();  // copies and reads have ended before results overwrite the tiles
    real* patch = shared->at + warp_id() * 16 * STRIDE;  // (16, STRIDE)  for each warp
    constexpr int LANES = COLUMNS / VECTOR;              // that store a row together
    int c = column + x + lane % LANES * VECTOR;
#pragma unroll
    for (int i = 0; i < ROWS / 16; i++) {
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; j++) {
            unsigned* to = reinterpret_cast<unsigned*>(patch + g * STRIDE + j * 8 + 2 * t);
            to[0] = pack(sums[i][j][0], sums[i][j][1]);
            to[8 * STRIDE / 2] = pack(sums[i][j][2], sums[i][j][3]);
        }
        __syncwarp();  // the results are in shared memory before other lanes read them
#pragma unroll
        for (int r = lane / LANES; r < 16; r += WARP_SIZE / LANES) {
            size_t n = row + y + i * 16 + r;
            if (n < N && c < OC) {
                Vec v = load_vec(patch + r * STRIDE + lane % LANES * VECTOR), gelus;
                for (int k = 0; k < VECTOR; k++) {
                    gelus[k] = to_real(gelu(to_float(v[k])));
                }
                store_vec(pre + n * OC + c, v);
                store_vec(out + n * OC + c, gelus);
            }
        }
        __syncwarp();  // all lanes have read them before the next ones overwrite them
    }
}
