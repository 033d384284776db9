// attention backward, 16bit rung 10: L2-aware head grouping
// Before: rung 9's blocks start with the first keys of all heads, and go on with the next keys of
//         all heads: 768 heads at B = 64, with 128 KB each of q, k, v and dout at T = 1024. When a
//         head's turn comes again, nothing of it is left in L2, and the tensor cores wait for
//         memory.
// Change: blocks go through all keys (or queries) of GROUP heads before they go on to other heads.
//         The grid has a third dimension, and nothing else changes.
// Expect: a head's tiles come from memory once. With 64 heads or fewer, nothing changes.
// Needs:  real in (float16, bfloat16); sm == 90; warp == 32; HS <= 64; HS % vector == 0
// Define: HS = C // NH; KEYS = 64; QUERIES = 128;
//         HEADS = B * NH; GROUP = min(HEADS, 64); GROUPS = ceil_div(HEADS, GROUP);
//         SHARED_K = (2 * KEYS + 4 * 64) * 64 * sizeof_real;
//         SHARED_Q = (2 * QUERIES + 4 * 64) * 64 * sizeof_real
// Launch: attention_backward_dq<<<(GROUP, ceil_div(T, QUERIES), GROUPS), 2 * QUERIES, SHARED_Q>>>
// Launch: attention_backward_dkdv<<<(GROUP, ceil_div(T, KEYS), GROUPS), 2 * KEYS, SHARED_K>>>
// Scratch: float32 delta[B, NH, T]
// Rounds: probs and dscores, factors of the gradients
// After:  16bit-9
// Left:   all threads spend instructions on copies, and in every step some of them wait for lse and
//         delta -> rung 11.

#include "async.cuh"
#include "fast_math.cuh"
#include "mma_real.cuh"
#include "wgmma_real.cuh"

constexpr int STEP = 64, TILE = STEP * 64;  // rows of a tile; its elements (64 channels)
constexpr int ACROSS = TILE * sizeof(real);  // selects MN-major; any stride will do for a lone tile

// Swizzle: the position of 16-byte piece p of a row in a tile, as wgmma expects it.
__device__ __forceinline__ int place(int row, int p) {
    return row * 64 + (p ^ row % 8) * VECTOR;
}

// Starts to copy rows of one head, from row `first` on, to COUNT tiles. Rows past T and channels
// past HS become zeros.
template <int COUNT, int THREADS>
__device__ __forceinline__ void copy_tiles(real* tiles, const real* head /* (T, HS) */, int first,
                                           int T, int step /* from row to row */) {
    int y = threadIdx.x / 8, p = threadIdx.x % 8;
    const real* from = head + (size_t)(first + y) * step + p * VECTOR;
    real* to = tiles + place(y, p);
#pragma unroll
    for (int s = 0; s < COUNT * STEP; s += THREADS / 8) {  // multiples of 8: the swizzle repeats
        cp_async_16_or_zero(to + s * 64, from + (size_t)s * step,
                            first + y + s < T && p * VECTOR < HS);
    }
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

// Computes dq of QUERIES queries, and delta (B, NH, T) = sum of dout * out over the channels.
extern "C" __global__ void __launch_bounds__(2 * QUERIES, 2) attention_backward_dq(
    real* __restrict__ dqkv,        // (B, T, 3, NH, HS)
    const real* __restrict__ dout,  // (B, T, NH, HS)
    const real* __restrict__ qkv,   // (B, T, 3, NH, HS)
    const real* __restrict__ out,   // (B, T, NH, HS)
    const float* __restrict__ lse,  // (B, NH, T)  log-sum-exp of each query's scores
    int B, int T, int C, int NH,
    float* __restrict__ delta) {    // (B, NH, T)
    extern __shared__ __align__(1024) Vec shared[];
    real* q = shared->at;         // (QUERIES, 64)
    real* dy = q + QUERIES * 64;  // (QUERIES, 64)  of dout
    real* k = dy + QUERIES * 64;  // (2, STEP, 64)  double buffer
    real* v = k + 2 * TILE;       // (2, STEP, 64)  double buffer
    int lane = lane_id(), t = lane % 4;
    int n = blockIdx.z * GROUP + blockIdx.x, b = n / NH, h = n % NH;
    if (n >= HEADS) return;  // the last group may have fewer heads
    int first = (gridDim.y - 1 - blockIdx.y) * QUERIES;  // blocks with most keys start first
    int own = warp_uniform(warp_id() / 4) * 64;  // the warpgroup's first query in the block
    int query = first + warp_id() * 16 + lane / 4;  // this lane has it, and the one 8 later
    const real* head = qkv + (size_t)b * T * 3 * C + h * HS;   // (T, HS)  q; rows 3 * C apart
    const real* head_out = dout + (size_t)b * T * C + h * HS;  // (T, HS)  dout; rows C apart
    auto copy_keys = [&](int start, int to) {
        copy_tiles<1, 2 * QUERIES>(k + to * TILE, head + C, start, T, 3 * C);
        copy_tiles<1, 2 * QUERIES>(v + to * TILE, head + 2 * C, start, T, 3 * C);
        cp_async_commit();
    };
    copy_tiles<QUERIES / 64, 2 * QUERIES>(q, head, first, T, 3 * C);
    copy_tiles<QUERIES / 64, 2 * QUERIES>(dy, head_out, first, T, C);
    copy_keys(0, 0);

    float log_sums[2], deltas[2] = {};
    for (int r = 0; r < 2; r++) {
        int row = min(query + r * 8, T - 1);
        size_t at = ((size_t)b * T + row) * C + h * HS;
        for (int i = t * VECTOR; i < HS; i += 4 * VECTOR) {
            Vec x = load_vec(dout + at + i), y = load_vec(out + at + i);
            for (int j = 0; j < VECTOR; j++) {
                deltas[r] += to_float(x[j]) * to_float(y[j]);
            }
        }
        deltas[r] += shuffle_xor(deltas[r], 1);
        deltas[r] += shuffle_xor(deltas[r], 2);
        log_sums[r] = lse[(size_t)n * T + row] * LOG2_E;
        if (t == 0 && query + r * 8 < T) delta[(size_t)n * T + row] = deltas[r];
    }

    float scale = rsqrtf(HS) * LOG2_E;  // exp(score / sqrt(HS)) is 2^(score * scale)
    float dq[32] = {};
    int end = min(first + QUERIES, T);
    for (int start = 0, turn = 0; start < end; start += STEP, turn ^= 1) {
        cp_async_wait<0>();
        tma_store_fence();  // makes the writes visible to wgmma (async proxy)
        __syncthreads();  // copies arrive before they are read; the pair filled next has been read
        if (start + STEP < end) copy_keys(start + STEP, turn ^ 1);  // later keys are in the future
        if (start > first + own) continue;  // all keys are in this warpgroup's future

        float scores[STEP / 2], dscores[STEP / 2];  // (64 queries, STEP keys)
        wgmma_fence();
        multiply_transposed(scores, q + own * 64, k + turn * TILE);
        multiply_transposed(dscores, dy + own * 64, v + turn * TILE);
        wgmma_wait<0>(scores, dscores);
        if (start == first + own) {  // the tile on the diagonal: some keys are in the future
#pragma unroll
            for (int i = 0; i < STEP / 2; i++) {
                int key = start + i / 4 * 8 + 2 * t + i % 2;
                if (key > query + i / 2 % 2 * 8) scores[i] = -INFINITY;
            }
        }
#pragma unroll
        for (int i = 0, r = 0; i < STEP / 2; i++, r = i / 2 % 2) {
            dscores[i] = fast_exp2(scores[i] * scale - log_sums[r]) * (dscores[i] - deltas[r]);
        }
        add(dq, dscores, k + turn * TILE);
        wgmma_wait<0>(dq);
    }
    __syncthreads();  // all warps have read q before results overwrite it
    real* gradient = dqkv + (size_t)b * T * 3 * C + h * HS;  // (T, HS)  dq; rows 3 * C apart
    store_rows(gradient, dq, rsqrtf(HS), q + own * 64, first + own, T, 3 * C);
}

// Computes dk and dv of KEYS keys.
extern "C" __global__ void __launch_bounds__(2 * KEYS, 3) attention_backward_dkdv(
    real* __restrict__ dqkv, const real* __restrict__ dout, const real* __restrict__ qkv,
    const real* __restrict__ out, const float* __restrict__ lse, int B, int T, int C, int NH,
    float* __restrict__ delta) {
    extern __shared__ __align__(1024) Vec shared[];
    real* k = shared->at;     // (KEYS, 64)
    real* v = k + KEYS * 64;  // (KEYS, 64)
    real* q = v + KEYS * 64;  // (2, STEP, 64)  double buffer
    real* dy = q + 2 * TILE;  // (2, STEP, 64)  double buffer; of dout
    __shared__ float log_sums[2][STEP], deltas[2][STEP];  // lse to base 2, and delta
    int lane = lane_id(), t = lane % 4;
    int n = blockIdx.z * GROUP + blockIdx.x, b = n / NH, h = n % NH;
    if (n >= HEADS) return;  // the last group may have fewer heads
    int first = blockIdx.y * KEYS;  // blocks with most queries start first
    int own = warp_uniform(warp_id() / 4) * 64;   // the warpgroup's first key in the block
    int key = first + warp_id() * 16 + lane / 4;  // this lane has it, and the one 8 later
    const real* head = qkv + (size_t)b * T * 3 * C + h * HS;   // (T, HS)  q; rows 3 * C apart
    const real* head_out = dout + (size_t)b * T * C + h * HS;  // (T, HS)  dout; rows C apart
    auto copy_queries = [&](int start, int to) {
        copy_tiles<1, 2 * KEYS>(q + to * TILE, head, start, T, 3 * C);
        copy_tiles<1, 2 * KEYS>(dy + to * TILE, head_out, start, T, C);
        cp_async_commit();
        if (threadIdx.x < STEP) {
            int query = start + threadIdx.x;
            size_t row = (size_t)n * T + query;
            log_sums[to][threadIdx.x] = query < T ? lse[row] * LOG2_E : INFINITY;  // probs = 0
            deltas[to][threadIdx.x] = query < T ? delta[row] : 0.0f;
        }
    };
    copy_tiles<KEYS / 64, 2 * KEYS>(k, head + C, first, T, 3 * C);
    copy_tiles<KEYS / 64, 2 * KEYS>(v, head + 2 * C, first, T, 3 * C);
    copy_queries(first, 0);  // earlier queries do not see these keys

    float scale = rsqrtf(HS) * LOG2_E;  // exp(score / sqrt(HS)) is 2^(score * scale)
    float dk[32] = {}, dv[32] = {};
    for (int start = first, turn = 0; start < T; start += STEP, turn ^= 1) {
        cp_async_wait<0>();
        tma_store_fence();  // makes the writes visible to wgmma (async proxy)
        __syncthreads();  // copies arrive before they are read; the pair filled next has been read
        if (start + STEP < T) copy_queries(start + STEP, turn ^ 1);
        if (start < first + own) continue;  // these queries see no key of this warpgroup

        float probs[STEP / 2], dscores[STEP / 2];  // transposed: (64 keys, STEP queries)
        wgmma_fence();
        multiply_transposed(probs, k + own * 64, q + turn * TILE);
        multiply_transposed(dscores, v + own * 64, dy + turn * TILE);
        wgmma_wait<1>(probs);
        if (start == first + own) {  // the tile on the diagonal: some queries precede some keys
#pragma unroll
            for (int i = 0; i < STEP / 2; i++) {
                int query = start + i / 4 * 8 + 2 * t + i % 2;
                if (query < key + i / 2 % 2 * 8) probs[i] = -INFINITY;
            }
        }
#pragma unroll
        for (int i = 0; i < STEP / 2; i++) {
            int query = i / 4 * 8 + 2 * t + i % 2;  // within the tile
            probs[i] = fast_exp2(probs[i] * scale - log_sums[turn][query]);
        }
        add(dv, probs, dy + turn * TILE);
        wgmma_wait<1>(dscores);  // dv's product may still run
#pragma unroll
        for (int i = 0; i < STEP / 2; i++) {
            int query = i / 4 * 8 + 2 * t + i % 2;
            dscores[i] = probs[i] * (dscores[i] - deltas[turn][query]);
        }
        add(dk, dscores, q + turn * TILE);
        wgmma_wait<0>(dk, dv);
    }
    __syncthreads();  // all warps have read k and v before results overwrite them
    real* gradient = dqkv + (size_t)b * T * 3 * C + h * HS;  // (T, HS)  dq; rows 3 * C apart
    store_rows(gradient + C, dk, rsqrtf(HS), k + own * 64, first + own, T, 3 * C);
    store_rows(gradient + 2 * C, dv, 1.0f, v + own * 64, first + own, T, 3 * C);
}
