// matmul forward, 16bit rung 17: weight-stationary tiles where channels are few
// Before: in rung 16, each tile loads its rows of weight anew, although the tile below needs the
//         same ones. With 384 channels, a tile is only 6 steps.
// Change: a block keeps 128 or 192 rows of weight in shared memory, with all their channels, and
//         goes down the rows of inp (weight-stationary). Only inp passes through the ring of
//         stages. A tile has 64 rows, which one warpgroup multiplies, the bias stays in registers,
//         and blocks need no cluster.
// Expect: for 384 channels, a third to half of the bytes are copied to shared memory per result.
// Needs:  real in (float16, bfloat16); sm == 90; warp == 32; C % vector == 0; OC % vector == 0;
//         C <= 384
// Define: DEPTH = 64; WARPS = 8; STEPS = ceil_div(C, DEPTH); HIGH = ceil_div(N, 64);
//         KEPT = matmul.tiles.kept_columns(HIGH, OC, multiprocessors);
//         WIDE = ceil_div(OC, KEPT); STAGES = 12 if KEPT == 128 else 6;
//         SHARED = (STEPS * KEPT + STAGES * 64 + 2 * 128) * DEPTH * sizeof_real
// Launch: matmul_forward<<<WIDE * min(HIGH, max(1, multiprocessors // WIDE)), (WARPS + 1) * warp,
//         SHARED>>>
// Tiles:  out[64, 64]; inp[64, DEPTH]; weight[KEPT, DEPTH]
// After:  16bit-16
// Left:   before its first product, a block waits for weight and inp.

#include "mma_real.cuh"
#include "wgmma_real.cuh"

struct alignas(4) Pair { real low, high; };  // one load of bias

constexpr int PATCH = 64 * 64;  // elements of results that one TMA store writes

// A position in the ring of stages. The parity that its barriers wait for flips with every round.
struct Stage {
    int index = 0, parity = 0;
    __device__ __forceinline__ void advance(int steps) {
        index += steps;
        parity ^= index / STAGES & 1;
        index %= STAGES;
    }
};

// All tiles of a block have the same columns, and are WIDE blocks apart.
extern "C" __global__ void __launch_bounds__((WARPS + 1) * WARP_SIZE, 1) matmul_forward(
    real* __restrict__ out,           // (N, OC)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const real* __restrict__ bias,    // (OC), or null
    int N, int C, int OC,
    const __grid_constant__ TensorMap out_tiles, const __grid_constant__ TensorMap inp_tiles,
    const __grid_constant__ TensorMap weight_tiles) {
    extern __shared__ __align__(1024) Vec shared[];
    __shared__ Mbarrier full[STAGES], empty[STAGES], turns[2];  // turns: one per warpgroup
    real* a = shared->at;                      // (STAGES, 64, DEPTH)       of inp
    real* b = a + STAGES * 64 * DEPTH;         // (STEPS, KEPT, DEPTH)      of weight
    real* patches = b + STEPS * KEPT * DEPTH;  // (2 warpgroups, 2, 64, 64)  of out
    int lane = lane_id(), column = blockIdx.x % WIDE * KEPT;
    int first = blockIdx.x / WIDE, stride = gridDim.x / WIDE;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(&full[stage], 1);  // arrivals: the producer thread
            mbarrier_init(&empty[stage], 4);  // arrivals: the warps of one warpgroup
        }
        for (int i = 0; i < 2; i++) mbarrier_init(&turns[i], 4);  // arrivals: the other's warps
    }
    __syncthreads();  // the barriers are initialized before any thread uses them

    Stage now;
    if (warp_id() == WARPS) {  // the producer warp
        if (lane > 0) return;
        for (int tile = first; tile < HIGH; tile += stride) {
            for (int step = 0; step < STEPS; step++, now.advance(1)) {
                Mbarrier* done = &full[now.index];
                mbarrier_wait(&empty[now.index], now.parity ^ 1);  // the consumers have read it
                int rows = 64 + (tile == first ? KEPT : 0);
                mbarrier_expect(done, rows * DEPTH * sizeof(real));
                if (tile == first) {
                    tma_load_2d(b + step * KEPT * DEPTH, &weight_tiles, done, step * DEPTH, column);
                }
                tma_load_2d(a + now.index * 64 * DEPTH, &inp_tiles, done, step * DEPTH,
                            tile * 64);
            }
        }
        return;
    }

    int group = warp_uniform(warp_id() / 4);  // the consumer warpgroup
    bool leader = threadIdx.x % 128 == 0;     // of the warpgroup
    int own = warp_id() % 4 * 16 + lane / 4, t = lane % 4;  // the lane's row, and another 8 later
    Pair pairs[KEPT / 8] = {};  // the bias
#pragma unroll
    for (int j = 0; j < KEPT / 8; j++) {
        int c = column + j * 8 + 2 * t;
        if (bias && c < OC) pairs[j] = *reinterpret_cast<const Pair*>(bias + c);
    }
    now.advance(group * STEPS);
    int turn = 0;            // the next patch; a tile may have an odd number of slices
    int before = 1 - group;  // parity of the other warpgroup's turn that precedes this one's
    for (int tile = first + group * stride; tile < HIGH; tile += 2 * stride) {
        float sums[KEPT / 2] = {};  // accumulators, laid out as mma.sync's D, 4 per matrix
        mbarrier_wait(&turns[group], before);  // without it, `full` may be a round behind
        before ^= 1;
        int last = 0;  // the previous stage
        for (int step = 0; step < STEPS; step++, now.advance(1)) {
            mbarrier_wait(&full[now.index], now.parity);  // the stage's copies have arrived
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < DEPTH; k += 16) {
                wgmma_m64k16<KEPT>(sums, a + now.index * 64 * DEPTH + k,
                                   b + step * KEPT * DEPTH + k);
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
        for (int s = 0; s < KEPT / 64; s++) {  // 64 columns at a time
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
                to[t] = pack(sums[4 * j] + low, sums[4 * j + 1] + high);
                to[8 * 32 + t] = pack(sums[4 * j + 2] + low, sums[4 * j + 3] + high);
            }
            tma_store_fence();  // makes the patch visible to TMA (async proxy)
            named_barrier(1 + group, 128);  // all of it is written before TMA reads it
            if (leader) {
                tma_store_2d(&out_tiles, patch, column + s * 64, tile * 64);
                tma_store_commit();
            }
        }
    }
    if (leader) tma_store_wait<0>();  // the block stays until TMA has read its shared memory
}
