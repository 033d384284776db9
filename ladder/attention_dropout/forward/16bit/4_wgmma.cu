// attention_dropout forward, 16bit rung 4: mask drawn while wgmma multiplies
// Before: in rung 3, a warp issues its products (mma.sync), and then computes random bytes. In
//         attention.forward 16bit rung 13, wgmma multiplies asynchronously, and a producer warp
//         copies with TMA.
// Change: the kernel of attention.forward 16bit rung 13, with the mask, which depends on positions
//         only. So a warpgroup draws it between the start of q @ k.T and the wait for it, and keeps
//         it as 32 bits of one register.
// Expect: the time of the product disappears behind that of the random bytes; the rest is
//         attention.forward 16bit rung 13.
// Needs:  real in (float16, bfloat16); sm == 90; warp == 32; HS <= 64; HS % vector == 0
// Define: HS = C // NH; QUERIES = 64; THREADS = 128; STEP = 64; STAGES = 3;
//         HEADS = B * NH; GROUP = min(HEADS, 64); GROUPS = ceil_div(HEADS, GROUP);
//         ROWS = ceil_div(T, QUERIES); SHARED = (QUERIES + 2 * STAGES * STEP) * 64 * sizeof_real
// Launch: attention_dropout_forward<<<(GROUP, ROWS, GROUPS), THREADS + 32, SHARED>>>
// Tiles:  qkv[STEP, 64]
// Rounds: exp(score - largest), the factor of v
// After:  attention.forward 16bit-13
// Left:   some 3 instructions of Philox and comparison for every element.

#include "attention_mask.cuh"
#include "fast_math.cuh"
#include "mma_real.cuh"
#include "wgmma_real.cuh"

constexpr int TILE = STEP * 64;  // elements of a tile; each row has 64 channels
constexpr int ACROSS = TILE * sizeof(real);  // selects MN-major; any stride will do for a lone tile

// Swizzle: the position of 16-byte piece p of a row in a tile, as wgmma expects it.
__device__ __forceinline__ int place(int row, int p) {
    return row * 64 + (p ^ row % 8) * VECTOR;
}

// A position in the ring of stages. The parity that its barriers wait for flips with every round.
struct Stage {
    int index = 0, parity = 0;
    __device__ __forceinline__ void next() {
        if (++index == STAGES) index = 0, parity ^= 1;
    }
};

// d (64, STEP) = a (64, 64) @ tile.T
__device__ __forceinline__ void multiply_transposed(float (&d)[STEP / 2], const real* a,
                                                    const real* tile) {
    wgmma_m64k16<STEP, false, 0, false>(d, a, tile);  // overwrites d
#pragma unroll
    for (int k = 16; k < 64; k += 16) {
        wgmma_m64k16<STEP>(d, a + k, tile + k);
    }
    wgmma_commit();
}

// d (64, 64) += a (64, STEP) @ tile, with a rounded to 16 bits
__device__ __forceinline__ void add(float (&d)[32], const float (&a)[STEP / 2], const real* tile) {
    unsigned rounded[STEP / 16][4];  // one product's D layout is the next one's A layout
#pragma unroll
    for (int i = 0; i < STEP / 4; i++) {
        rounded[i / 4][i % 4] = pack(a[2 * i], a[2 * i + 1]);
    }
    wgmma_pin(d), wgmma_pin(rounded);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < STEP / 16; k++) {
        wgmma_m64k16<64, ACROSS>(d, rounded[k], tile + k * 16 * 64);
    }
    wgmma_commit();
}

// Stores d (64, 64) * factor as rows of one head. The results pass through `tile`, which is free
// now, so that 8 lanes store the 128 bytes of a row (coalesced). `row` is the warpgroup's first
// row; a lane has two rows, each with its factor in `factors`.
__device__ __forceinline__ void store_rows(real* head, const float (&d)[32],
                                           const float (&factors)[2], real* tile, int row, int T,
                                           int step) {
    int lane = lane_id(), y = warp_id() % 4 * 16;  // y: the warp's first row of the tile
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int r = i % 2, p = i / 2;
        unsigned* to = reinterpret_cast<unsigned*>(tile + place(y + lane / 4 + r * 8, p));
        to[lane % 4] = pack(d[4 * p + 2 * r] * factors[r], d[4 * p + 2 * r + 1] * factors[r]);
    }
    __syncwarp();  // the rows are complete before other lanes read them
    for (int i = lane; i < 16 * 8; i += WARP_SIZE) {
        int r = y + i / 8, p = i % 8;
        if (row + r < T && p * VECTOR < HS) {
            store_vec(head + (size_t)(row + r) * step + p * VECTOR, load_vec(tile + place(r, p)));
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS + WARP_SIZE, 3) attention_dropout_forward(
    real* __restrict__ out,            // (B, T, C)
    float* __restrict__ lse,           // (B, NH, T)  log-sum-exp of each query's scores
    const real* __restrict__ qkv,      // (B, T, 3, NH, HS)
    const unsigned* __restrict__ rng,  // (4)  seed low, seed high, step, micro-step
    int B, int T, int C, int NH, float p, unsigned stream,
    const __grid_constant__ TensorMap qkv_tiles) {
    extern __shared__ __align__(1024) Vec shared[];
    __shared__ Mbarrier q_full, full[STAGES], empty[STAGES];
    real* q = shared->at;         // (QUERIES, 64)
    real* k = q + QUERIES * 64;   // (STAGES, STEP, 64)
    real* v = k + STAGES * TILE;  // (STAGES, STEP, 64)
    int n = blockIdx.z * GROUP + blockIdx.x, b = n / NH, column = n % NH * HS;
    if (n >= HEADS) return;  // the last group may have fewer heads
    int first = (gridDim.y - 1 - blockIdx.y) * QUERIES;  // blocks with most keys start first
    if (threadIdx.x == 0) {
        mbarrier_init(&q_full, 1);
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(&full[stage], 1);  // arrivals: the producer thread
            mbarrier_init(&empty[stage], THREADS / WARP_SIZE);  // arrivals: the consumer warps
        }
    }
    __syncthreads();  // the barriers are initialized before any thread waits on them

    Stage now;
    if (warp_id() == THREADS / WARP_SIZE) {  // the producer warp: one thread asks TMA for copies
        if (lane_id() > 0) return;
        int row = b * T;  // rows past T: the next sequence's, masked like keys in the future
        mbarrier_expect(&q_full, QUERIES * 64 * sizeof(real));
        for (int i = 0; i < QUERIES; i += STEP) {
            tma_load_2d(q + i * 64, &qkv_tiles, &q_full, column, row + first + i);
        }
        for (int start = 0; start < min(first + QUERIES, T); start += STEP, now.next()) {
            Mbarrier* done = &full[now.index];
            mbarrier_wait(&empty[now.index], now.parity ^ 1);  // the consumers have read it
            mbarrier_expect(done, 2 * TILE * sizeof(real));
            tma_load_2d(k + now.index * TILE, &qkv_tiles, done, C + column, row + start);
            tma_load_2d(v + now.index * TILE, &qkv_tiles, done, 2 * C + column, row + start);
        }
        return;
    }

    int lane = lane_id(), t = lane % 4;
    int group = warp_uniform(warp_id() / 4), own = group * 64;  // the warpgroup; its first query
    // This lane has queries `query` and `query` + 8, at [0] and [1] of the arrays below.
    int query = first + warp_id() * 16 + lane / 4;
    AttentionMask mask(rng, stream, p, n, T);
    float sums[32] = {};  // (64 queries, 64 channels)
    float largest[2] = {-INFINITY, -INFINITY}, total[2] = {};  // total: of this lane's keys only
    float scale = rsqrtf(HS) * LOG2_E;  // exp(score / sqrt(HS)) is 2^(score * scale)
    int end = min(first + own + 64, T);  // keys from here on are in the future
    mbarrier_wait(&q_full, 0);  // q has arrived
    if (HS < 64) {  // a row continues with another head's channels: they are multiplied by 0
        for (int i = threadIdx.x % 128; i < 64 * 8; i += 128) {
            if (i % 8 * VECTOR >= HS) store_vec(q + own * 64 + place(i / 8, i % 8), {});
        }
        tma_store_fence();  // makes the writes visible to wgmma (async proxy)
        named_barrier(1 + group, 128);  // all zeros are written before any warp multiplies them
    }
    for (int start = 0; start < end; start += STEP, now.next()) {
        mbarrier_wait(&full[now.index], now.parity);  // the stage's copies have arrived
        float scores[STEP / 2];  // (64 queries, STEP keys)
        wgmma_fence();
        multiply_transposed(scores, q + own * 64, k + now.index * TILE);
        // While the tensor cores multiply.
        unsigned kept = mask.draw_lane<STEP / 2>(query, start + 2 * t);
        wgmma_wait<0>(scores);
        if (start == first + own) {  // the tile on the diagonal: some keys are in the future
#pragma unroll
            for (int i = 0; i < STEP / 2; i++) {
                int key = start + i / 4 * 8 + 2 * t + i % 2;
                if (key > query + i / 2 % 2 * 8) scores[i] = -INFINITY;
            }
        }

#pragma unroll
        for (int r = 0; r < 2; r++) {
            float before = largest[r];
#pragma unroll
            for (int i = 2 * r; i < STEP / 2; i += 4) {
                largest[r] = fmaxf(largest[r], fmaxf(scores[i], scores[i + 1]));
            }
            largest[r] = fmaxf(largest[r], shuffle_xor(largest[r], 1));
            largest[r] = fmaxf(largest[r], shuffle_xor(largest[r], 2));
            float rescale = fast_exp2((before - largest[r]) * scale);  // 0 at the first tile
            total[r] *= rescale;
#pragma unroll
            for (int i = 2 * r; i < 32; i += 4) {
                sums[i] *= rescale;
                sums[i + 1] *= rescale;
            }
#pragma unroll
            for (int i = 2 * r; i < STEP / 2; i += 4) {
                for (int j = i; j < i + 2; j++) {
                    scores[j] = fast_exp2(scores[j] * scale - largest[r] * scale);
                    total[r] += scores[j];  // the softmax's sum sees no dropout
                    if (!(kept >> mask.lane_bit(j) & 1)) scores[j] = 0.0f;
                }
            }
        }

        add(sums, scores, v + now.index * TILE);
        wgmma_wait<0>(sums);
        __syncwarp();  // no lane's products still read the stage when it is released
        if (lane == 0) mbarrier_arrive(&empty[now.index]);
    }
    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        total[r] += shuffle_xor(total[r], 1);
        total[r] += shuffle_xor(total[r], 2);
        inverse[r] = mask.scale / total[r];
        if (t == 0 && query + r * 8 < T) {
            lse[(size_t)n * T + query + r * 8] = largest[r] * rsqrtf(HS) + logf(total[r]);
        }
    }
    named_barrier(1 + group, 128);  // the warpgroup has read its q before results overwrite it
    real* head_out = out + (size_t)b * T * C + column;
    store_rows(head_out, sums, inverse, q + own * 64, first + own, T, C);
}
