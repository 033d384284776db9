// matmul_gelu backward_input, 16bit rung 3b: two blocks per SM
// Before: in rung 3, an SM has only one block. While its warps wait for pre, compute slopes and
//         store, nothing is multiplied.
// Change: half a block, as in matmul_gelu.forward 16bit rung 5b: four warps for 128 x 128 outputs,
//         and three stages of 16 KB, so that an SM has room for two. One multiplies while the other
//         waits for pre.
// Expect: the ends of blocks hide behind products, for a third more bytes from L2 for a product.
//         The end is longer than that of the forward pass, since it waits for pre.
// Needs:  real in (float16, bfloat16); sm >= 80; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE_ROWS = 128; TILE_COLUMNS = 128; DEPTH = 32; WARPS = 4; STAGES = 3;
//         SHARED = STAGES * (TILE_ROWS + TILE_COLUMNS) * DEPTH * sizeof_real
// Launch: matmul_gelu_backward_input<<<(ceil_div(C, TILE_COLUMNS), ceil_div(N, TILE_ROWS)),
//         WARPS * warp, SHARED>>>
// Rounds: the product, which lies in shared memory before it is multiplied by the slope
// After:  16bit-3
// Left:   mma.sync cannot keep Hopper's tensor cores as busy as wgmma -> rung 5.

#include "async.cuh"
#include "fast_math.cuh"
#include "mma_real.cuh"

constexpr int ROWS = 64, COLUMNS = 64;  // outputs of a warp; the warps form a 2 x 2 grid
constexpr int STRIDE = COLUMNS + VECTOR;  // padded: 8 rows of results begin in different banks

constexpr float SCALE = 0.7978845608f;  // sqrt(2 / pi)
constexpr float CUBIC = 0.044715f;
constexpr float LINEAR = -2.0f * LOG2_E * SCALE;  // exp(-2u) = 2^(LINEAR * (x + CUBIC * x^3))

// s = (1 + tanh(u)) / 2 is the sigmoid of 2u, and (1 - tanh(u)^2) / 2 = 2 s (1 - s). Near s = 1 the
// difference 1 - s loses digits (cancellation), too few to show in 16 bits.
__device__ __forceinline__ float gelu_slope(float x) {
    float square = x * x;
    float s = __fdividef(1.0f, 1.0f + fast_exp2(x * (LINEAR + LINEAR * CUBIC * square)));
    float steepness = x * (2.0f * SCALE + 6.0f * SCALE * CUBIC * square);  // 2x du/dx
    return s * (1.0f + steepness * (1.0f - s));
}

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

// A warp's fragments (what its lanes hold of A and B matrices) of 16 features.
struct Fragments {
    unsigned a[ROWS / 16][4];     // A matrices
    unsigned b[COLUMNS / 16][4];  // B matrices, in pairs

    // Loads them from a tile of dout and a tile of weight. The warp's rows begin at `y`, its
    // columns at `x`.
    __device__ __forceinline__ void load(const real* tile_a, const real* tile_b, int y, int x,
                                         int k) {
        int lane = lane_id();
#pragma unroll
        for (int i = 0; i < ROWS / 16; i++) {
            int r = y + i * 16 + lane % 16;
            ldmatrix_x4(a[i], tile_a + place<DEPTH>(r, k / 8 + lane / 16));
        }
#pragma unroll
        for (int j = 0; j < COLUMNS / 16; j++) {
            int p = x / 8 + j * 2 + lane / 16;
            ldmatrix_x4_trans(b[j], tile_b + place<TILE_COLUMNS>(k + lane % 16, p));
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

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE, 2) matmul_gelu_backward_input(
    real* __restrict__ dinp,          // (N, C)
    const real* __restrict__ dout,    // (N, OC)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ pre,     // (N, C)
    int N, int C, int OC) {
    extern __shared__ Vec shared[];
    real* a = shared->at;                      // (STAGES, TILE_ROWS, DEPTH)     of dout
    real* b = a + STAGES * TILE_ROWS * DEPTH;  // (STAGES, DEPTH, TILE_COLUMNS)  of weight
    int row = blockIdx.y * TILE_ROWS, column = blockIdx.x * TILE_COLUMNS;  // where its tile begins
    int y = warp_id() / 2 * ROWS, x = warp_id() % 2 * COLUMNS;             // the warp's, within it
    int lane = lane_id(), g = lane / 4, t = lane % 4;

    auto copy = [&](int stage, int start) {  // copies zeros past the end: cheaper than a branch
        copy_tile<TILE_ROWS, DEPTH>(a + stage * TILE_ROWS * DEPTH, dout, row, start, N, OC);
        copy_tile<DEPTH, TILE_COLUMNS>(b + stage * DEPTH * TILE_COLUMNS, weight, start, column, OC,
                                       C);
        cp_async_commit();
    };
    for (int stage = 0; stage < STAGES; stage++) {
        copy(stage, stage * DEPTH);
    }
    float sums[ROWS / 16][COLUMNS / 8][4] = {};  // accumulators: D matrices of 16 x 8
    cp_async_wait<STAGES - 1>();
    __syncthreads();  // all copies to stage 0 have arrived before any warp reads it

    Fragments now, next;
    now.load(a, b, y, x, 0);
    for (int start = 0, stage = 0; start < OC; start += DEPTH) {
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            if (k + 16 < DEPTH) {
                next.load(a + stage * TILE_ROWS * DEPTH, b + stage * DEPTH * TILE_COLUMNS, y, x,
                          k + 16);
            } else {
                cp_async_wait<STAGES - 2>();
                __syncthreads();  // the next stage has arrived; all warps have read this one
                copy(stage, start + STAGES * DEPTH);
                stage = (stage + 1) % STAGES;
                next.load(a + stage * TILE_ROWS * DEPTH, b + stage * DEPTH * TILE_COLUMNS, y, x, 0);
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
            if (n < N && c < C) {
                Vec v = load_vec(patch + r * STRIDE + lane % LANES * VECTOR);
                Vec before = load_vec(pre + n * C + c);
                for (int k = 0; k < VECTOR; k++) {
                    v[k] = to_real(to_float(v[k]) * gelu_slope(to_float(before[k])));
                }
                store_vec(dinp + n * C + c, v);
            }
        }
        __syncwarp();  // all lanes have read them before the next ones overwrite them
    }
}
