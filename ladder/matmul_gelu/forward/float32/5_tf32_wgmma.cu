// matmul_gelu forward, float32 rung 5: TF32 by wgmma, rounded by TMA
// Before: in rung 4, CUDA cores do a multiply-add for each product. Tensor cores multiply float32
//         matrices only as TF32: 10 instead of 23 bits of fraction. matmul.forward float32 rung 9
//         does so, and TMA rounds both factors while it copies.
// Change: the product of matmul.forward float32 rung 9, with gelu, which is computed from float32,
//         as before.
// Expect: the gap to cuBLASLt shrinks as that of the product does. The gelus are as many as in rung
//         4, and now they count: the tensor cores wait for them.
// Needs:  real == float32; sm == 90; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE_ROWS = 128; HIGH = ceil_div(N, TILE_ROWS);
//         TILE_COLUMNS = matmul.tiles.tile_columns(HIGH, OC, multiprocessors, 256, 192);
//         DEPTH = 32; WARPS = 8; GROUP = 8; STAGES = 4;
//         SHARED = (STAGES * (TILE_ROWS + TILE_COLUMNS) + 2 * TILE_ROWS) * DEPTH * sizeof_real;
//         TILES = ceil_div(OC, TILE_COLUMNS) * HIGH
// Launch: matmul_gelu_forward<<<min(TILES, multiprocessors), (WARPS + 1) * warp, SHARED>>>
// Tiles:  out[64, 32]; pre[64, 32]; inp[TILE_ROWS, DEPTH]; weight[TILE_COLUMNS, DEPTH]
// TF32:   both factors, rounded by TMA
// After:  matmul.forward float32-9
// Left:   both warpgroups compute gelus at the same time. If one multiplied meanwhile, the tensor
//         cores would never wait.

#include "fast_math.cuh"
#include "portable.cuh"
#include "wgmma_tf32.cuh"

struct alignas(8) Pair { float low, high; };  // one load of bias, one store of results

constexpr int PATCH = 64 * 32;  // elements of one result that one TMA store writes

constexpr float SCALE = 0.7978845608f;  // sqrt(2 / pi)
constexpr float CUBIC = 0.044715f;
constexpr float LINEAR = -2.0f * LOG2_E * SCALE;  // exp(-2u) = 2^(LINEAR * (x + CUBIC * x^3))

// (1 + tanh(u)) / 2 is the logistic function of 2u. If the power overflows to infinity, the
// quotient is 0, which is the right limit.
__device__ __forceinline__ float gelu(float x) {
    float power = fast_exp2(x * (LINEAR + LINEAR * CUBIC * x * x));  // exp(-2u)
    return __fdividef(x, 1.0f + power);
}

// A position in the ring of stages. The parity that its barriers wait for flips with every round.
struct Stage {
    int index = 0, parity = 0;
    __device__ __forceinline__ void next() {
        if (++index == STAGES) index = 0, parity ^= 1;
    }
};

// Finds the first row and column of a tile, in grouped order: down GROUP rows of tiles, then one
// column on.
__device__ __forceinline__ void find_tile(int tile, int high, int wide, int& row, int& column) {
    int top = tile / (GROUP * wide) * GROUP, of_group = tile % (GROUP * wide);
    int rows = min(GROUP, high - top);  // rows of tiles in this group
    row = (top + of_group % rows) * TILE_ROWS;
    column = of_group / rows * TILE_COLUMNS;
}

extern "C" __global__ void __launch_bounds__((WARPS + 1) * WARP_SIZE, 1) matmul_gelu_forward(
    real* __restrict__ out,           // (N, OC)
    real* __restrict__ pre,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC)
    int N, int C, int OC,
    const __grid_constant__ TensorMap out_tiles, const __grid_constant__ TensorMap pre_tiles,
    const __grid_constant__ TensorMap inp_tiles, const __grid_constant__ TensorMap weight_tiles) {
    extern __shared__ __align__(1024) Vec shared[];
    __shared__ Mbarrier full[STAGES], empty[STAGES];
    real* a = shared->at;                            // (STAGES, TILE_ROWS, DEPTH)     of inp
    real* b = a + STAGES * TILE_ROWS * DEPTH;        // (STAGES, TILE_COLUMNS, DEPTH)  of weight
    real* patches = b + STAGES * TILE_COLUMNS * DEPTH;  // (2 warpgroups, 2, 64, 32)  of pre, out
    int high = (N + TILE_ROWS - 1) / TILE_ROWS, wide = (OC + TILE_COLUMNS - 1) / TILE_COLUMNS;
    int lane = lane_id(), row, column;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(&full[stage], 1);  // arrivals: the producer thread
            mbarrier_init(&empty[stage], WARPS);  // arrivals: the consumer warps
        }
    }
    __syncthreads();  // the barriers are initialized before any thread waits on them

    Stage now;
    if (warp_id() == WARPS) {  // the producer warp
        if (lane > 0) return;
        for (int tile = blockIdx.x; tile < high * wide; tile += gridDim.x) {
            find_tile(tile, high, wide, row, column);
            for (int start = 0; start < C; start += DEPTH, now.next()) {
                Mbarrier* done = &full[now.index];
                mbarrier_wait(&empty[now.index], now.parity ^ 1);  // the consumers have read it
                mbarrier_expect(done, (TILE_ROWS + TILE_COLUMNS) * DEPTH * sizeof(real));
                tma_load_2d(a + now.index * TILE_ROWS * DEPTH, &inp_tiles, done, start, row);
                tma_load_2d(b + now.index * TILE_COLUMNS * DEPTH, &weight_tiles, done, start,
                            column);
            }
        }
        return;
    }

    int group = warp_id() / 4, first = group * 64;  // the consumer warpgroup; its first row
    bool leader = threadIdx.x % 128 == 0;       // of the warpgroup
    int own = warp_id() % 4 * 16 + lane / 4, t = lane % 4;  // the lane's row, and another 8 later
    for (int tile = blockIdx.x; tile < high * wide; tile += gridDim.x) {
        find_tile(tile, high, wide, row, column);
        float sums[TILE_COLUMNS / 2] = {};  // accumulators, laid out as mma.sync's D, 4 per matrix
        int last = 0;  // the previous stage
        for (int start = 0; start < C; start += DEPTH, now.next()) {
            mbarrier_wait(&full[now.index], now.parity);  // the stage's copies have arrived
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < DEPTH; k += 8) {
                wgmma_m64k8_tf32<TILE_COLUMNS>(sums,
                                               a + (now.index * TILE_ROWS + first) * DEPTH + k,
                                               b + now.index * TILE_COLUMNS * DEPTH + k);
            }
            wgmma_commit();
            wgmma_wait<1>();  // the products of the previous stage are done
            __syncwarp();     // in all lanes, before the stage is released
            if (start > 0 && lane == 0) mbarrier_arrive(&empty[last]);
            last = now.index;
        }
        wgmma_wait<0>(sums);
        __syncwarp();  // all lanes' products are done before the stage is released
        if (lane == 0) mbarrier_arrive(&empty[last]);

#pragma unroll
        for (int s = 0; s < TILE_COLUMNS / 32; s++) {  // 32 columns at a time
            real *befores = patches + group * 2 * PATCH, *gelus = befores + PATCH;
            if (leader) tma_store_wait<0>();  // the stores from these patches have read them
            named_barrier(1 + group, 128);  // ... before the warpgroup overwrites them
#pragma unroll
            for (int p = 0; p < 4; p++) {
                int j = s * 4 + p, c = column + j * 8 + 2 * t;
                Pair pair = {};
                if (c < OC) pair = *reinterpret_cast<const Pair*>(bias + c);
#pragma unroll
                for (int r = 0; r < 2; r++) {  // the lane's two rows
                    float x = sums[4 * j + 2 * r] + pair.low;
                    float y = sums[4 * j + 2 * r + 1] + pair.high;
                    int piece = (2 * p + t / 2) ^ own % 8;  // TMA's swizzle
                    int at = (own + r * 8) * 32 + piece * VECTOR + t % 2 * 2;
                    *reinterpret_cast<Pair*>(befores + at) = {x, y};
                    *reinterpret_cast<Pair*>(gelus + at) = {gelu(x), gelu(y)};
                }
            }
            tma_store_fence();  // makes the patches visible to TMA (async proxy)
            named_barrier(1 + group, 128);  // both patches are written before TMA reads them
            if (leader) {
                tma_store_2d(&pre_tiles, befores, column + s * 32, row + first);
                tma_store_2d(&out_tiles, gelus, column + s * 32, row + first);
                tma_store_commit();
            }
        }
    }
    if (leader) tma_store_wait<0>();  // the block stays until TMA has read its shared memory
}
