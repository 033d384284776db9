// matmul_gelu forward, 16bit rung 6: wgmma (warpgroup matrix multiply)
// Before: rung 5 multiplies with mma.sync, which cannot keep Hopper's tensor cores busy.
// Change: the product of matmul.forward 16bit rung 12: wgmma, with which four warps multiply tiles
//         straight from shared memory. The results are stored in whole rows as before, and get
//         their gelu there.
// Expect: the shorter the product, the larger the share of the epilogue: the gelus, which the
//         special function units compute while the tensor cores idle, and the second matrix to
//         store.
// Needs:  real in (float16, bfloat16); sm == 90; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE_ROWS = 128; TILE_COLUMNS = 256; DEPTH = 64; WARPS = 8; GROUP = 8; STAGES = 4;
//         SHARED = STAGES * (TILE_ROWS + TILE_COLUMNS) * DEPTH * sizeof_real
// Launch: matmul_gelu_forward<<<ceil_div(OC, TILE_COLUMNS) * ceil_div(N, TILE_ROWS), WARPS * warp,
//         SHARED>>>
// Rounds: pre, of which it takes the gelu
// After:  matmul.forward 16bit-12
// Left:   while a block computes its gelus, another block on the SM could multiply, if two had room
//         there. While it stores, the next tiles could arrive -> rung 7.

#include "async.cuh"
#include "fast_math.cuh"
#include "mma_real.cuh"
#include "wgmma_real.cuh"

struct alignas(4) Pair { real low, high; };  // one load of bias

constexpr int PIECES = DEPTH / VECTOR;  // of 16 bytes, to a row of a tile
constexpr int STEP = WARPS * WARP_SIZE / PIECES;  // rows that the block copies at once
constexpr int STRIDE = TILE_COLUMNS + VECTOR;  // padded: 8 rows of results begin in different banks

constexpr float SCALE = 0.7978845608f;  // sqrt(2 / pi)
constexpr float CUBIC = 0.044715f;
constexpr float LINEAR = -2.0f * LOG2_E * SCALE;  // exp(-2u) = 2^(LINEAR * (x + CUBIC * x^3))

// (1 + tanh(u)) / 2 is the logistic function of 2u. If the power overflows to infinity, the
// quotient is 0, which is the right limit.
__device__ __forceinline__ float gelu(float x) {
    float power = fast_exp2(x * (LINEAR + LINEAR * CUBIC * x * x));  // exp(-2u)
    return __fdividef(x, 1.0f + power);
}

// Swizzle: the position of 16-byte piece p of a row in a tile (rows, DEPTH), as wgmma expects it.
__device__ __forceinline__ int place(int row, int p) {
    return row * DEPTH + (p ^ row % 8) * VECTOR;
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

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE) matmul_gelu_forward(
    real* __restrict__ out,           // (N, OC)
    real* __restrict__ pre,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC)
    int N, int C, int OC) {
    extern __shared__ __align__(1024) Vec shared[];
    real* a = shared->at;                      // (STAGES, TILE_ROWS, DEPTH)     of inp
    real* b = a + STAGES * TILE_ROWS * DEPTH;  // (STAGES, TILE_COLUMNS, DEPTH)  of weight
    int high = (N + TILE_ROWS - 1) / TILE_ROWS, wide = (OC + TILE_COLUMNS - 1) / TILE_COLUMNS;
    int top = blockIdx.x / (GROUP * wide) * GROUP, of_group = blockIdx.x % (GROUP * wide);
    int rows = min(GROUP, high - top);  // rows of tiles in this group
    int row = (top + of_group % rows) * TILE_ROWS;  // where the block's tile begins
    int column = of_group / rows * TILE_COLUMNS;
    int y = warp_id() / 4 * 64;  // the warpgroup's first row of the tile
    int lane = lane_id(), g = lane / 4, t = lane % 4;

    auto copy = [&](int stage, int start) {  // copies zeros past the end: cheaper than a branch
        copy_tile<TILE_ROWS>(a + stage * TILE_ROWS * DEPTH, inp, row, start, N, C);
        copy_tile<TILE_COLUMNS>(b + stage * TILE_COLUMNS * DEPTH, weight, column, start, OC, C);
        cp_async_commit();
    };
    for (int stage = 0; stage < STAGES - 2; stage++) {
        copy(stage, stage * DEPTH);
    }
    float sums[TILE_COLUMNS / 2] = {};  // accumulators, laid out as mma.sync's D, 4 per matrix
    for (int start = 0, stage = 0; start < C; start += DEPTH, stage = (stage + 1) % STAGES) {
        cp_async_wait<STAGES - 3>();
        tma_store_fence();  // makes the writes visible to wgmma (async proxy)
        __syncthreads();  // this stage has arrived; the stage filled next is free again
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) {
            wgmma_m64k16<TILE_COLUMNS>(sums, a + (stage * TILE_ROWS + y) * DEPTH + k,
                                       b + stage * TILE_COLUMNS * DEPTH + k);
        }
        wgmma_commit();
        copy((stage + STAGES - 2) % STAGES, start + (STAGES - 2) * DEPTH);
        wgmma_wait<1>();
    }
    wgmma_wait<0>();

    cp_async_wait<0>();
    __syncthreads();  // copies and reads have ended before results overwrite the tiles
    real* patch = shared->at + warp_id() * 16 * STRIDE;  // (16, STRIDE)  for each warp
#pragma unroll
    for (int j = 0; j < TILE_COLUMNS / 8; j++) {
        int c = column + j * 8 + 2 * t;
        Pair pair = {};
        if (c < OC) pair = *reinterpret_cast<const Pair*>(bias + c);
        float low = to_float(pair.low), high = to_float(pair.high);
        unsigned* to = reinterpret_cast<unsigned*>(patch + g * STRIDE + j * 8 + 2 * t);
        to[0] = pack(sums[4 * j] + low, sums[4 * j + 1] + high);
        to[8 * STRIDE / 2] = pack(sums[4 * j + 2] + low, sums[4 * j + 3] + high);
    }
    __syncwarp();  // the results are in shared memory before other lanes read them
    int c = column + lane * VECTOR;  // 32 lanes store a row together
#pragma unroll
    for (int r = 0; r < 16; r++) {
        size_t n = row + warp_id() * 16 + r;
        if (n < N && c < OC) {
            Vec v = load_vec(patch + r * STRIDE + lane * VECTOR), gelus;
            for (int k = 0; k < VECTOR; k++) {
                gelus[k] = to_real(gelu(to_float(v[k])));
            }
            store_vec(pre + n * OC + c, v);
            store_vec(out + n * OC + c, gelus);
        }
    }
}
