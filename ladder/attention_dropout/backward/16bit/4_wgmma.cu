// attention_dropout backward, 16bit rung 4: mask drawn while wgmma multiplies
// Before: rung 3's warps issue products (mma.sync), and then compute random bytes. In
//         attention.backward 16bit rung 11, wgmma multiplies asynchronously, and TMA copies.
// Change: the kernels of attention.backward 16bit rung 11, with the mask. While the products for
//         scores and dprobs run, a warpgroup draws it, and keeps it as 32 bits of one register.
// Expect: the time of these products disappears behind that of the random bytes.
// Needs:  real in (float16, bfloat16); sm == 90; warp == 32; HS <= 64; HS % vector == 0
// Define: HS = C // NH; STEP = 64; STEPS = ceil_div(T, STEP); SHARED = 6 * STEP * 64 * sizeof_real;
//         HEADS = B * NH; GROUP = min(HEADS, 64); GROUPS = ceil_div(HEADS, GROUP)
// Launch: attention_dropout_backward_dq<<<(GROUP, STEPS, GROUPS), 128, SHARED>>>
// Launch: attention_dropout_backward_dkdv<<<(GROUP, STEPS, GROUPS), 128, SHARED>>>
// Scratch: float32 numbers[HEADS, STEPS, 2, STEP]
// Tiles:  dout[STEP, 64]; qkv[STEP, 64]
// Rounds: probs and dscores, factors of the gradients
// After:  attention.backward 16bit-11
// Left:   some 3 instructions of Philox and comparison for every element, twice.

#include "async.cuh"
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

// One thread calls this. TMA copies rows of two matrices, from `row` on, to one tile each. Rows
// past T belong to the next sequence: their probs and dscores are 0.
__device__ __forceinline__ void copy_tiles(Mbarrier* full, real* a, const TensorMap* from_a,
                                           int column_a, real* b, const TensorMap* from_b,
                                           int column_b, int row) {
    mbarrier_expect(full, 2 * TILE * sizeof(real));
    tma_load_2d(a, from_a, full, column_a, row);
    tma_load_2d(b, from_b, full, column_b, row);
}

// Clears the channels past HS of the block's own two tiles, into which TMA copied channels of
// another head. The tiles that these are multiplied with then need not be 0 there, only finite.
__device__ __forceinline__ void clear_channels(real* tiles) {
    for (int i = threadIdx.x; i < 2 * STEP * 8; i += 128) {
        if (i % 8 * VECTOR >= HS) store_vec(tiles + place(i / 8, i % 8), {});
    }
    tma_store_fence();  // makes the writes visible to wgmma (async proxy)
    __syncthreads();  // all zeros are written before any warp multiplies them
}

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

// Stores d (64, 64) * factor as rows of one head, from `row` on. The results pass through `tile`,
// which is free now, so that 8 lanes store the 128 bytes of a row (coalesced).
__device__ __forceinline__ void store_rows(real* head, const float (&d)[32], float factor,
                                           real* tile, int row, int T, int step) {
    int lane = lane_id(), y = warp_id() % 4 * 16;  // y: the warp's first row of the tile
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int r = i % 2, p = i / 2;
        unsigned* to = reinterpret_cast<unsigned*>(tile + place(y + lane / 4 + r * 8, p));
        to[lane % 4] = pack(d[4 * p + 2 * r] * factor, d[4 * p + 2 * r + 1] * factor);
    }
    __syncwarp();  // the rows are complete before other lanes read them
    for (int i = lane; i < 16 * 8; i += WARP_SIZE) {
        int r = y + i / 8, p = i % 8;
        if (row + r < T && p * VECTOR < HS) {
            store_vec(head + (size_t)(row + r) * step + p * VECTOR, load_vec(tile + place(r, p)));
        }
    }
}

// Computes dq of STEP queries; stores their lse and delta (sum of dout * out over channels). Only
// the results are scaled by 1 / share. Since dscores are not, delta is multiplied by the share.
extern "C" __global__ void __launch_bounds__(128, 3) attention_dropout_backward_dq(
    real* __restrict__ dqkv,           // (B, T, 3, NH, HS)
    const real* __restrict__ dout,     // (B, T, NH, HS)
    const real* __restrict__ qkv,      // (B, T, 3, NH, HS)
    const real* __restrict__ out,      // (B, T, NH, HS)
    const float* __restrict__ lse,     // (B, NH, T)  log-sum-exp of each query's scores
    const unsigned* __restrict__ rng,  // (4)  seed low, seed high, step, micro-step
    int B, int T, int C, int NH, float p, unsigned stream,
    float* __restrict__ numbers,       // (HEADS, STEPS, 2, STEP)  lse to base 2, and delta
    const __grid_constant__ TensorMap dout_tiles, const __grid_constant__ TensorMap qkv_tiles) {
    extern __shared__ __align__(1024) Vec shared[];
    __shared__ Mbarrier own_full, full[2];
    real* q = shared->at;    // (STEP, 64)
    real* dy = q + TILE;     // (STEP, 64)  of dout
    real* k = dy + TILE;     // (2, STEP, 64)  double buffer
    real* v = k + 2 * TILE;  // (2, STEP, 64)  double buffer
    int lane = lane_id(), t = lane % 4;
    int n = blockIdx.z * GROUP + blockIdx.x, b = n / NH, column = n % NH * HS;
    if (n >= HEADS) return;  // the last group may have fewer heads
    int first = (STEPS - 1 - blockIdx.y) * STEP;    // blocks with most keys start first
    int query = first + warp_id() * 16 + lane / 4;  // this lane has it, and the one 8 later
    auto copy_keys = [&](int start, int to) {
        if (start > first || threadIdx.x > 0) return;  // only past keys; one thread asks TMA
        copy_tiles(&full[to], k + to * TILE, &qkv_tiles, C + column, v + to * TILE, &qkv_tiles,
                   2 * C + column, b * T + start);
    };
    if (threadIdx.x == 0) {
        mbarrier_init(&own_full, 1), mbarrier_init(&full[0], 1), mbarrier_init(&full[1], 1);
        copy_tiles(&own_full, q, &qkv_tiles, column, dy, &dout_tiles, column, b * T + first);
    }
    copy_keys(0, 0);
    __syncthreads();  // the barriers are initialized before any thread waits on them

    AttentionMask mask(rng, stream, p, n, T);
    float log_sums[2], deltas[2] = {};
    for (int r = 0; r < 2; r++) {
        int row = min(query + r * 8, T - 1);
        size_t at = ((size_t)b * T + row) * C + column;
        for (int i = t * VECTOR; i < HS; i += 4 * VECTOR) {
            Vec x = load_vec(dout + at + i), y = load_vec(out + at + i);
            for (int j = 0; j < VECTOR; j++) {
                deltas[r] += to_float(x[j]) * to_float(y[j]);
            }
        }
        deltas[r] += shuffle_xor(deltas[r], 1);
        deltas[r] = (deltas[r] + shuffle_xor(deltas[r], 2)) * mask.share;
        bool inside = query + r * 8 < T;  // if not, lse and delta make probs and dscores 0
        log_sums[r] = inside ? lse[(size_t)n * T + row] * LOG2_E : INFINITY;
        if (t == 0) {
            float* to = numbers + ((size_t)n * STEPS * STEP + first) * 2 + query % STEP + r * 8;
            to[0] = log_sums[r];
            to[STEP] = inside ? deltas[r] : 0.0f;
        }
    }

    float scale = rsqrtf(HS) * LOG2_E;  // exp(score / sqrt(HS)) is 2^(score * scale)
    float dq[32] = {};
    mbarrier_wait(&own_full, 0);  // the block's own tiles have arrived
    if (HS < 64) clear_channels(q);
    for (int start = 0, step = 0; start <= first; start += STEP, step++) {
        int now = step % 2;
        real *now_k = k + now * TILE, *now_v = v + now * TILE;
        float scores[STEP / 2], dscores[STEP / 2];  // (64 queries, STEP keys)
        mbarrier_wait(&full[now], step / 2 % 2);  // this step's copies have arrived
        wgmma_fence();
        multiply_transposed(scores, q, now_k);
        multiply_transposed(dscores, dy, now_v);
        unsigned kept = mask.draw_lane<STEP / 2>(query, start + 2 * t);  // while these run
        wgmma_wait<1>(scores);  // also waits for the previous step's product for dq
        __syncthreads();  // all warps have read the previous step's tiles before their refill
        copy_keys(start + STEP, 1 - now);
        if (start == first) {  // the tile on the diagonal: some keys are in the future
#pragma unroll
            for (int i = 0; i < STEP / 2; i++) {
                int key = start + i / 4 * 8 + 2 * t + i % 2;
                if (key > query + i / 2 % 2 * 8) scores[i] = -INFINITY;
            }
        }
#pragma unroll
        for (int i = 0; i < STEP / 2; i++) {
            scores[i] = fast_exp2(scores[i] * scale - log_sums[i / 2 % 2]);
        }
        wgmma_wait<0>(dscores);
#pragma unroll
        for (int i = 0; i < STEP / 2; i++) {
            bool keep = kept >> mask.lane_bit(i) & 1;
            dscores[i] = scores[i] * ((keep ? dscores[i] : 0.0f) - deltas[i / 2 % 2]);
        }
        add(dq, dscores, now_k);  // the next step waits for it
    }
    wgmma_wait<0>(dq);
    __syncthreads();  // all warps have read q before results overwrite it
    real* gradient = dqkv + (size_t)b * T * 3 * C + column;  // (T, HS)  dq; rows 3 * C apart
    store_rows(gradient, dq, rsqrtf(HS) * mask.scale, q, first, T, 3 * C);
}

// Computes dk and dv of STEP keys.
extern "C" __global__ void __launch_bounds__(128, 3) attention_dropout_backward_dkdv(
    real* __restrict__ dqkv, const real* __restrict__ dout, const real* __restrict__ qkv,
    const real* __restrict__ out, const float* __restrict__ lse, const unsigned* __restrict__ rng,
    int B, int T, int C, int NH, float p, unsigned stream, const float* __restrict__ numbers,
    const __grid_constant__ TensorMap dout_tiles, const __grid_constant__ TensorMap qkv_tiles) {
    extern __shared__ __align__(1024) Vec shared[];
    __shared__ Mbarrier own_full, full[2];
    __shared__ __align__(16) float rows[2][2][STEP];  // double buffer of lse to base 2, and delta
    real* k = shared->at;     // (STEP, 64)
    real* v = k + TILE;       // (STEP, 64)
    real* q = v + TILE;       // (2, STEP, 64)  double buffer
    real* dy = q + 2 * TILE;  // (2, STEP, 64)  double buffer; of dout
    int lane = lane_id(), t = lane % 4;
    int n = blockIdx.z * GROUP + blockIdx.x, b = n / NH, column = n % NH * HS;
    if (n >= HEADS) return;  // the last group may have fewer heads
    int first = blockIdx.y * STEP;  // blocks with most queries start first
    int key = first + warp_id() * 16 + lane / 4;  // this lane has it, and the one 8 later
    auto copy_queries = [&](int start, int to) {
        if (start >= T) return;
        if (threadIdx.x < 2 * STEP / 4) {  // 16 bytes per thread
            const float* from = numbers + ((size_t)n * STEPS * STEP + start) * 2;
            cp_async_16(rows[to][0] + threadIdx.x * 4, from + threadIdx.x * 4);
            cp_async_commit();
        }
        if (threadIdx.x > 0) return;
        copy_tiles(&full[to], q + to * TILE, &qkv_tiles, column, dy + to * TILE, &dout_tiles,
                   column, b * T + start);
    };
    if (threadIdx.x == 0) {
        mbarrier_init(&own_full, 1), mbarrier_init(&full[0], 1), mbarrier_init(&full[1], 1);
        copy_tiles(&own_full, k, &qkv_tiles, C + column, v, &qkv_tiles, 2 * C + column,
                   b * T + first);
    }
    copy_queries(first, 0);  // earlier queries do not see these keys
    __syncthreads();  // the barriers are initialized before any thread waits on them

    float scale = rsqrtf(HS) * LOG2_E;  // exp(score / sqrt(HS)) is 2^(score * scale)
    float dk[32] = {}, dv[32] = {};
    AttentionMask mask(rng, stream, p, n, T);
    mbarrier_wait(&own_full, 0);  // the block's own tiles have arrived
    if (HS < 64) clear_channels(k);
    for (int start = first, step = 0; start < T; start += STEP, step++) {
        int now = step % 2;
        real *now_q = q + now * TILE, *now_dy = dy + now * TILE;
        float probs[STEP / 2], dscores[STEP / 2];  // transposed: (64 keys, STEP queries)
        mbarrier_wait(&full[now], step / 2 % 2);  // this step's copies have arrived
        wgmma_fence();
        multiply_transposed(probs, k, now_q);
        multiply_transposed(dscores, v, now_dy);
        unsigned kept = mask.draw_lane<STEP / 2, true>(start + 2 * t, key);  // while these run
        cp_async_wait<0>();
        __syncthreads();  // `rows` arrive before any read; the previous step's tiles have been read
        copy_queries(start + STEP, 1 - now);
        wgmma_wait<1>(probs);
        if (start == first) {  // the tile on the diagonal: some queries precede some keys
#pragma unroll
            for (int i = 0; i < STEP / 2; i++) {
                int query = start + i / 4 * 8 + 2 * t + i % 2;
                if (query < key + i / 2 % 2 * 8) probs[i] = -INFINITY;
            }
        }
#pragma unroll
        for (int i = 0; i < STEP / 2; i++) {
            int query = i / 4 * 8 + 2 * t + i % 2;  // within the tile
            probs[i] = fast_exp2(probs[i] * scale - rows[now][0][query]);
        }
        wgmma_wait<0>(dscores);
#pragma unroll
        for (int i = 0; i < STEP / 2; i++) {
            int query = i / 4 * 8 + 2 * t + i % 2;
            bool keep = kept >> mask.lane_bit<true>(i) & 1;
            dscores[i] = probs[i] * ((keep ? dscores[i] : 0.0f) - rows[now][1][query]);
            if (!keep) probs[i] = 0.0f;
        }
        add(dv, probs, now_dy);
        add(dk, dscores, now_q);
        wgmma_wait<0>(dk, dv);
    }
    __syncthreads();  // all warps have read k and v before results overwrite them
    real* gradient = dqkv + (size_t)b * T * 3 * C + column;  // (T, HS)  dq; rows 3 * C apart
    store_rows(gradient + C, dk, rsqrtf(HS) * mask.scale, k, first, T, 3 * C);
    store_rows(gradient + 2 * C, dv, mask.scale, v, first, T, 3 * C);
}
