// matmul_crossentropy forward, 16bit rung 2: exponentials in the epilogue of ping-pong tiles
// Before: in rung 1, each multiply-add needs two loads. The product of matmul.forward 16bit rung 18
//         has an epilogue that is hidden: while one warpgroup stores, the other multiplies.
// Change: that product, whose epilogue stores exponentials, and each row's sum of a tile's. A start
//         kernel computes the target's logits before it, a dot product for each row. A finish
//         kernel adds up each row's sums: loss, factor, scaled inp and the target's entry follow.
//         weight does not stay in L2, so twice as many rows share each reading of it (GROUP = 16).
// Expect: no pass over logits: the time of the product, and of reading inp twice. An exponential
//         takes 1/16 of a clock of an SM's special function units, and its 768 multiply-adds 3/8
//         of the tensor cores', so the epilogue stays hidden.
// Needs:  real == bfloat16; sm == 90; warp == 32; C % vector == 0; OC % vector == 0
// Define: TILE_ROWS = 128; TILE_COLUMNS = 192; PAIRS = ceil_div(N, 2 * TILE_ROWS);
//         CLUSTERS = multiprocessors // 2; DEPTH = 64; WARPS = 8; GROUP = 16; STAGES = 4;
//         SHARED = (STAGES * (TILE_ROWS + TILE_COLUMNS) + 2 * 128) * DEPTH * sizeof_real;
//         WIDE = ceil_div(OC, TILE_COLUMNS); TILES = WIDE * PAIRS; BLOCK = 256; ROWS = 64
// Launch: matmul_crossentropy_forward_start<<<ceil_div(N, BLOCK // warp), BLOCK>>>
// Launch: matmul_crossentropy_forward<<<2 * min(TILES, CLUSTERS), (WARPS + 4) * warp, SHARED>>>
// Launch: matmul_crossentropy_forward_finish<<<ceil_div(N, ROWS), BLOCK>>>
// Scratch: float32 correct[N]; float32 partial[WIDE, N]
// Tiles:  exps[64, 64]; inp[TILE_ROWS, DEPTH]; weight[TILE_COLUMNS // 2, DEPTH]
// After:  matmul.forward 16bit-18
// Rewrite: start and finish are new kernels; of the product, only the epilogue has changed
// Left:   start and finish read inp again; the layernorm before them has it in registers.

#include "fast_math.cuh"
#include "mma_real.cuh"
#include "wgmma_real.cuh"

constexpr int PATCH = 64 * 64;  // elements of results that one TMA store writes

constexpr float MOST = 90.0f;  // log2 of the largest exponential: sums and inverses are finite

// A position in the ring of stages. The parity that its barriers wait for flips with every round.
struct Stage {
    int index = 0, parity = 0;
    __device__ __forceinline__ void advance(int steps) {
        index += steps;
        parity ^= index / STAGES & 1;
        index %= STAGES;
    }
};

// exp(logit - the target's), with shift = the target's * LOG2_E. Not fminf, which would hide NaN.
__device__ __forceinline__ float power(float logit, float shift) {
    float x = fmaf(logit, LOG2_E, -shift);
    return fast_exp2(x > MOST ? MOST : x);
}

// Finds the first row and column of a pair of tiles, in grouped order: down GROUP rows of pairs,
// then one column on.
__device__ __forceinline__ void find_pair(int pair, int high, int wide, int& row, int& column) {
    int top = pair / (GROUP * wide) * GROUP, of_group = pair % (GROUP * wide);
    int rows = min(GROUP, high - top);  // rows of pairs in this group
    row = (top + of_group % rows) * 2 * TILE_ROWS;
    column = of_group / rows * TILE_COLUMNS;
}

extern "C" __global__ void __cluster_dims__(2, 1, 1)
__launch_bounds__((WARPS + 4) * WARP_SIZE, 1) matmul_crossentropy_forward(
    const float* __restrict__ correct,  // (N)        the target's logit, times LOG2_E
    float* __restrict__ partial,        // (WIDE, N)  sums of a tile's exps
    int N, int C, int V,
    const __grid_constant__ TensorMap exps_tiles, const __grid_constant__ TensorMap inp_tiles,
    const __grid_constant__ TensorMap weight_tiles) {
    extern __shared__ __align__(1024) Vec shared[];
    __shared__ Mbarrier full[STAGES], empty[STAGES], turns[2];  // turns: one per warpgroup
    real* a = shared->at;                            // (STAGES, TILE_ROWS, DEPTH)     of inp
    real* b = a + STAGES * TILE_ROWS * DEPTH;        // (STAGES, TILE_COLUMNS, DEPTH)  of weight
    real* patches = b + STAGES * TILE_COLUMNS * DEPTH;  // (2 warpgroups, 2, 64, 64)  of exps
    int rank = cluster_rank();
    int lane = lane_id(), steps = (C + DEPTH - 1) / DEPTH, row, column;
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(&full[stage], 1);  // arrivals: the producer thread
            mbarrier_init(&empty[stage], WARPS);  // arrivals: one warpgroup in each block
        }
        for (int i = 0; i < 2; i++) mbarrier_init(&turns[i], 4);  // arrivals: the other's warps
    }
    cluster_barrier();  // both blocks' barriers are initialized before any thread uses them

    Stage now;
    if (warp_id() >= WARPS) {  // the producer warpgroup, of which one thread works
        fewer_registers<40>();
        int half = rank * TILE_COLUMNS / 2;
        bool producer = threadIdx.x == WARPS * WARP_SIZE;
        for (int pair = blockIdx.x / 2; producer && pair < TILES; pair += gridDim.x / 2) {
            find_pair(pair, PAIRS, WIDE, row, column);
            for (int start = 0; start < C; start += DEPTH, now.advance(1)) {
                Mbarrier* done = &full[now.index];
                mbarrier_wait(&empty[now.index], now.parity ^ 1);  // the consumers have read it
                mbarrier_expect(done, (TILE_ROWS + TILE_COLUMNS) * DEPTH * sizeof(real));
                tma_load_2d(a + now.index * TILE_ROWS * DEPTH, &inp_tiles, done, start,
                            row + rank * TILE_ROWS);
                tma_load_2d_multicast(b + (now.index * TILE_COLUMNS + half) * DEPTH, &weight_tiles,
                                      done, start, column + half, 3);
            }
        }
        __syncwarp();  // all lanes must reach cluster_barrier together
        cluster_barrier();  // neither block ends while the other still copies to its memory
        return;
    }

    more_registers<232>();
    int group = warp_uniform(warp_id() / 4);  // the consumer warpgroup
    bool leader = threadIdx.x % 128 == 0;     // of the warpgroup
    int own = warp_id() % 4 * 16 + lane / 4, t = lane % 4;  // the lane's row, and another 8 later
    int stride = gridDim.x / 2;
    now.advance(group * steps);
    int before = 1 - group;  // parity of the other warpgroup's turn that precedes this one's
    for (int pair = blockIdx.x / 2 + group * stride; pair < TILES; pair += 2 * stride) {
        find_pair(pair, PAIRS, WIDE, row, column);
        row += rank * TILE_ROWS;
        float shifts[4];  // of rows `own` and 8 later of either half
#pragma unroll
        for (int r = 0; r < 4; r++) {
            int n = row + r / 2 * 64 + own + r % 2 * 8;
            shifts[r] = n < N ? correct[n] : INFINITY;  // 2^-infinity is 0
        }
        float sums[2][TILE_COLUMNS / 2] = {};  // of rows 0 to 63 and 64 to 127
        mbarrier_wait(&turns[group], before);  // without it, `full` may be a round behind
        before ^= 1;
        int last = 0;  // the previous stage
        for (int step = 0; step < steps; step++, now.advance(1)) {
            mbarrier_wait(&full[now.index], now.parity);  // the stage's copies have arrived
            wgmma_fence();
#pragma unroll
            for (int k = 0; k < DEPTH; k += 16) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    wgmma_m64k16<TILE_COLUMNS>(
                        sums[half], a + (now.index * TILE_ROWS + half * 64) * DEPTH + k,
                        b + now.index * TILE_COLUMNS * DEPTH + k);
                }
            }
            wgmma_commit();
            wgmma_wait<1>();  // the products of the previous stage are done
            __syncwarp();     // in all lanes, before the stage is released
            if (step > 0 && lane < 2) mbarrier_arrive_at(&empty[last], lane);
            last = now.index;
        }
        if (lane == 0) mbarrier_arrive(&turns[1 - group]);  // its products are all issued
        wgmma_wait<0>(sums[0], sums[1]);
        __syncwarp();  // all lanes' products are done before the stage is released
        if (lane < 2) mbarrier_arrive_at(&empty[last], lane);
        now.advance(steps);  // skips the other warpgroup's stages

        if (column + TILE_COLUMNS > V) {  // padding has no gradient
#pragma unroll
            for (int i = 0; i < TILE_COLUMNS / 2; i++) {
                if (column + i / 4 * 8 + 2 * t + i % 2 >= V) sums[0][i] = sums[1][i] = -INFINITY;
            }
        }
        float sum[4] = {};  // of exponentials of the four rows
#pragma unroll
        for (int s = 0; s < TILE_COLUMNS / 32; s++) {  // 64 rows and columns at a time
            int half = s / (TILE_COLUMNS / 64), x = s % (TILE_COLUMNS / 64) * 64;
            real* patch = patches + (group * 2 + s % 2) * PATCH;
            if (leader) tma_store_wait<1>();  // the previous store from this patch has read it
            named_barrier(1 + group, 128);  // ... before the warpgroup overwrites it
#pragma unroll
            for (int p = 0; p < 8; p++) {
                int j = x / 8 + p;
                unsigned* to = reinterpret_cast<unsigned*>(
                    patch + own * 64 + (p ^ own % 8) * VECTOR);  // TMA's swizzle
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float shift = shifts[half * 2 + r];
                    float low = power(sums[half][4 * j + 2 * r], shift);
                    float high = power(sums[half][4 * j + 2 * r + 1], shift);
                    sum[half * 2 + r] += low + high;
                    to[r * 8 * 32 + t] = pack(low, high);
                }
            }
            tma_store_fence();  // makes the patch visible to TMA (async proxy)
            named_barrier(1 + group, 128);  // all of it is written before TMA reads it
            if (leader) {
                tma_store_2d(&exps_tiles, patch, column + x, row + half * 64);
                tma_store_commit();
            }
        }
#pragma unroll
        for (int r = 0; r < 4; r++) {
            sum[r] += shuffle_xor(sum[r], 1);
            sum[r] += shuffle_xor(sum[r], 2);  // of the four lanes that share the row
            int n = row + r / 2 * 64 + own + r % 2 * 8;
            if (t == 0 && n < N) partial[(size_t)(column / TILE_COLUMNS) * N + n] = sum[r];
        }
    }
    if (leader) tma_store_wait<0>();  // the block stays until TMA has read its shared memory
    __syncwarp();  // all lanes must reach cluster_barrier together
    cluster_barrier();  // neither block ends while the other still arrives at its barriers
}

// A warp per row computes the target's logit.
extern "C" __global__ void __launch_bounds__(BLOCK) matmul_crossentropy_forward_start(
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const int* __restrict__ targets,  // (N)
    float* __restrict__ correct,      // (N)
    int N, int C) {
    int n = blockIdx.x * (BLOCK / WARP_SIZE) + warp_id();
    if (n >= N) return;  // the whole warp returns, so no shuffle below misses a lane
    const real *x = inp + (size_t)n * C, *w = weight + (size_t)targets[n] * C;
    float sum = 0.0f;
#pragma unroll 3
    for (int i = lane_id() * VECTOR; i < C; i += WARP_SIZE * VECTOR) {
        Vec xs = load_vec(x + i), ws = load_vec(w + i);
        for (int k = 0; k < VECTOR; k++) {
            sum += to_float(xs[k]) * to_float(ws[k]);
        }
    }
    sum = warp_sum(sum);
    if (lane_id() == 0) correct[n] = sum * LOG2_E;
}

// A block adds up the sums of ROWS rows, BLOCK / ROWS threads a row; then it scales their inp.
extern "C" __global__ void __launch_bounds__(BLOCK) matmul_crossentropy_forward_finish(
    real* __restrict__ exps,          // (N, OC)  at the target 1 - total
    float* __restrict__ losses,       // (N)      log(total)
    float* __restrict__ factors,      // (N)      dloss / total
    real* __restrict__ scaled,        // (N, C)   factors * inp
    const real* __restrict__ inp,     // (N, C)
    const int* __restrict__ targets,  // (N)
    const float* __restrict__ dloss,  // (1)
    const float* __restrict__ partial,  // (WIDE, N)
    int N, int C, int OC) {
    __shared__ float totals[BLOCK / ROWS][ROWS], factor[ROWS];
    int first = blockIdx.x * ROWS, r = threadIdx.x % ROWS, n = first + r;
    float sum = 0.0f;
#pragma unroll 8
    for (int i = threadIdx.x / ROWS; i < WIDE; i += BLOCK / ROWS) {
        if (n < N) sum += partial[(size_t)i * N + n];
    }
    totals[threadIdx.x / ROWS][r] = sum;
    __syncthreads();  // all sums are there before they are added up
    if (threadIdx.x < ROWS && n < N) {
        float total = 0.0f;
        for (int i = 0; i < BLOCK / ROWS; i++) {
            total += totals[i][r];
        }
        losses[n] = log2f(total) * LN_2;
        factors[n] = factor[r] = dloss[0] / total;
        exps[(size_t)n * OC + targets[n]] = to_real(1.0f - total);
    }
    __syncthreads();  // all factors are there before they are read
    int vectors = C / VECTOR, rows = min(ROWS, N - first);
    for (int i = threadIdx.x; i < rows * vectors; i += BLOCK) {
        Vec xs = load_vec(inp + (size_t)first * C + i * VECTOR);
        for (int k = 0; k < VECTOR; k++) {
            xs[k] = to_real(to_float(xs[k]) * factor[i / vectors]);
        }
        store_vec(scaled + (size_t)first * C + i * VECTOR, xs);
    }
}
