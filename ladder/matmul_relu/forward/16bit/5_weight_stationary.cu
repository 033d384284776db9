// matmul_relu forward, 16bit rung 5: weight-stationary tiles, for few channels
// Before: in matmul.forward 16bit rung 16, a tile of 128 x 128 loads its factors anew: with 384
//         channels 192 KB, half of it the same rows of weight for every tile below.
// Change: a block keeps TILE_COLUMNS rows of weight, with all their channels, in shared memory, and
//         goes down the rows of inp (weight-stationary). Tiles are 64 rows high, one warpgroup's
//         wgmma. The bias stays in registers, and the ReLU follows it. Ping-pong, two consumer
//         warpgroups on alternate tiles, is as in matmul.forward 16bit rung 16; there are no
//         clusters.
// Expect: a tile of 64 x 192 loads 48 KB, so the whole product copies 0.4 times as many bytes to
//         shared memory. With 1,536 columns there are 8 groups of weight's rows, and 16 blocks for
//         each: 128 of 132 SMs (streaming multiprocessors) have work, and all of it at once.
// Needs:  real in (float16, bfloat16); sm == 90; warp == 32; C % vector == 0; OC % vector == 0;
//         C <= 384
// Define: TILE_ROWS = 64; TILE_COLUMNS = 192; DEPTH = 64; STEPS = ceil_div(C, DEPTH); WARPS = 8;
//         STAGES = 6; WIDE = ceil_div(OC, TILE_COLUMNS); HIGH = ceil_div(N, TILE_ROWS);
//         SHARED = (STEPS * TILE_COLUMNS + STAGES * TILE_ROWS + 4 * 64) * DEPTH * sizeof_real
// Launch: matmul_relu_forward<<<WIDE * min(HIGH, max(1, multiprocessors // WIDE)),
//         (WARPS + 1) * warp, SHARED>>>
// Tiles:  out[64, 64]; inp[TILE_ROWS, DEPTH]; weight[TILE_COLUMNS, DEPTH]
// After:  matmul.forward 16bit-16
// Replaces: 16bit-4 ping_pong
// Left:   more than 384 channels of 192 rows do not fit into shared memory.

#include "mma_real.cuh"
#include "wgmma_real.cuh"

struct alignas(4) Pair { real low, high; };  // one load of bias

constexpr int PATCH = 64 * 64;  // elements of results that one TMA store writes

// Not fmaxf(x, 0): it returns 0 for NaN, and so would hide it.
__device__ __forceinline__ float relu(float x) { return x < 0.0f ? 0.0f : x; }

// A position in the ring of stages. The parity that its barriers wait for flips with every round.
struct Stage {
    int index = 0, parity = 0;
    __device__ __forceinline__ void advance(int steps) {
        index += steps;
        parity ^= index / STAGES & 1;
        index %= STAGES;
    }
};

extern "C" __global__ void __launch_bounds__((WARPS + 1) * WARP_SIZE, 1) matmul_relu_forward(
    real* __restrict__ out,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC)
    int N, int C, int OC,
    const __grid_constant__ TensorMap out_tiles, const __grid_constant__ TensorMap inp_tiles,
    const __grid_constant__ TensorMap weight_tiles) {
    extern __shared__ __align__(1024) Vec shared[];
    __shared__ Mbarrier full[STAGES], empty[STAGES], turns[2];  // turns: one per warpgroup
    real* b = shared->at;                            // (STEPS, TILE_COLUMNS, DEPTH)  of weight
    real* a = b + STEPS * TILE_COLUMNS * DEPTH;      // (STAGES, TILE_ROWS, DEPTH)    of inp
    real* patches = a + STAGES * TILE_ROWS * DEPTH;  // (2 warpgroups, 2, 64, 64)     of out
    int lane = lane_id(), column = blockIdx.x % WIDE * TILE_COLUMNS;
    int top = blockIdx.x / WIDE, stride = gridDim.x / WIDE;  // the block's first tile, and the next
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(&full[stage], 1);  // arrivals: the producer thread
            mbarrier_init(&empty[stage], 4);  // arrivals: the warps of one warpgroup
        }
        for (int i = 0; i < 2; i++) mbarrier_init(&turns[i], 4);  // arrivals: the other's warps
    }
    __syncthreads();  // the barriers are initialized before any thread waits on them

    Stage now;
    if (warp_id() == WARPS) {  // the producer warp
        if (lane > 0) return;
        for (int tile = top; tile < HIGH; tile += stride) {
            int columns = tile == top ? TILE_COLUMNS : 0;  // weight comes with the first tile
            for (int step = 0; step < STEPS; step++, now.advance(1)) {
                Mbarrier* done = &full[now.index];
                mbarrier_wait(&empty[now.index], now.parity ^ 1);  // the consumers have read it
                mbarrier_expect(done, (TILE_ROWS + columns) * DEPTH * sizeof(real));
                tma_load_2d(a + now.index * TILE_ROWS * DEPTH, &inp_tiles, done, step * DEPTH,
                            tile * TILE_ROWS);
                if (columns > 0) {
                    tma_load_2d(b + step * TILE_COLUMNS * DEPTH, &weight_tiles, done, step * DEPTH,
                                column);
                }
            }
        }
        return;
    }

    int group = warp_uniform(warp_id() / 4);  // the consumer warpgroup
    bool leader = threadIdx.x % 128 == 0;     // of the warpgroup
    int own = warp_id() % 4 * 16 + lane / 4, t = lane % 4;  // the lane's row, and another 8 later
    Pair pairs[TILE_COLUMNS / 8] = {};  // of bias, at the lane's columns
#pragma unroll
    for (int j = 0; j < TILE_COLUMNS / 8; j++) {
        int c = column + j * 8 + 2 * t;
        if (c < OC) pairs[j] = *reinterpret_cast<const Pair*>(bias + c);
    }
    now.advance(group * STEPS);
    int before = 1 - group;  // parity of the other warpgroup's turn that precedes this one's
    int turn = 0;  // the next patch; a tile has an odd number of slices
    for (int tile = top + group * stride; tile < HIGH; tile += 2 * stride) {
        float sums[TILE_COLUMNS / 2] = {};  // accumulators, laid out as mma.sync's D, 4 per matrix
        mbarrier_wait(&turns[group], before);  // weight is there, and `full` is not a round behind
        before ^= 1;
        int last = 0;  // the previous stage
        for (int step = 0; step < STEPS; step++, now.advance(1)) {
            mbarrier_wait(&full[now.index], now.parity);  // the stage's copies have arrived
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < DEPTH; k += 16) {
                wgmma_m64k16<TILE_COLUMNS>(sums, a + now.index * TILE_ROWS * DEPTH + k,
                                           b + step * TILE_COLUMNS * DEPTH + k);
            }
            wgmma_commit();
            wgmma_wait<1>();  // the products of the previous stage are done
            __syncwarp();     // in all lanes, before the stage is released
            if (step > 0 && lane == 0) mbarrier_arrive(&empty[last]);
            last = now.index;
        }
        if (lane == 0) mbarrier_arrive(&turns[1 - group]);  // its products are all issued
        wgmma_wait<0>(sums);
        __syncwarp();  // all lanes' products are done before the stage is released
        if (lane == 0) mbarrier_arrive(&empty[last]);
        now.advance(STEPS);  // skips the other warpgroup's stages

#pragma unroll
        for (int s = 0; s < TILE_COLUMNS / 64; s++) {  // 64 columns at a time
            real* patch = patches + (group * 2 + turn) * PATCH;
            turn ^= 1;
            if (leader) tma_store_wait<1>();  // the previous store from this patch has read it
            named_barrier(1 + group, 128);  // ... before the warpgroup overwrites it
#pragma unroll
            for (int p = 0; p < 8; p++) {
                int j = s * 8 + p;
                float low = to_float(pairs[j].low), high = to_float(pairs[j].high);
                unsigned* to = reinterpret_cast<unsigned*>(
                    patch + own * 64 + (p ^ own % 8) * VECTOR);  // TMA's swizzle
                to[t] = pack(relu(sums[4 * j] + low), relu(sums[4 * j + 1] + high));
                to[8 * 32 + t] = pack(relu(sums[4 * j + 2] + low), relu(sums[4 * j + 3] + high));
            }
            tma_store_fence();  // makes the patch visible to TMA (async proxy)
            named_barrier(1 + group, 128);  // all of it is written before TMA reads it
            if (leader) {
                tma_store_2d(&out_tiles, patch, column + s * 64, tile * TILE_ROWS);
                tma_store_commit();
            }
        }
    }
    if (leader) tma_store_wait<0>();  // the block stays until TMA has read its shared memory
}
