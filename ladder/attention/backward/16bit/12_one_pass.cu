// attention backward, 16bit rung 12: one pass, each persistent block has a whole head
// Before: in rung 11, two kernels compute scores and dprobs: seven products instead of five.
// Change: one persistent kernel, a block of four warpgroups on each SM. It has a head at a time, of
//         that two tiles of keys, a pair. Two warpgroups have a tile each, for dk and dv. They hand
//         dscores to a third, which multiplies them with k. Its sums for dq wait for the next pair
//         in a float32 scratch in L2. A thread loads what it stored itself: no atomics.
// Expect: five products for seven, half of the exponentials; with fewer heads than SMs, idle SMs.
// Needs:  real in (float16, bfloat16); sm == 90; warp == 32; HS == 64; T <= 4096
// Define: HS = C // NH; STEP = 64; STEPS = ceil_div(T, STEP); PAIRS = ceil_div(STEPS, 2);
//         IN_ROW = NH; HEADS = B * NH; GRID = min(HEADS, multiprocessors); STAGES = 3;
//         BYTES = (13 + 2 * STAGES) * STEP * 64 * sizeof_real + 4 * STEPS * STEP * 4;
//         NEAR = max(0, min(STEPS, (231000 - BYTES) // (STEP * 64 * 4))); FAR = STEPS - NEAR
// Launch: attention_backward<<<GRID, 512, BYTES + NEAR * STEP * 64 * 4>>>
// Scratch: float32 sums[GRID, STEPS, STEP, 64]
// Tiles:  dout[STEP, 64]; qkv[STEP, 64]
// Rounds: probs and dscores, factors of the gradients
// After:  16bit-11
// Rewrite: one kernel with warpgroups of different roles instead of two kernels.
// Left:   long sequences, whose scratch L2 does not keep.

#include "fast_math.cuh"
#include "mma_real.cuh"
#include "wgmma_real.cuh"

constexpr int TILE = STEP * 64, ROWS = STEPS * STEP;  // TILE: elements; 64 channels in each row
constexpr int ACROSS = TILE * sizeof(real);  // selects MN-major; any stride will do for a lone tile

// Swizzle: the position of 16-byte piece p of a row in a tile, as wgmma expects it.
__device__ __forceinline__ int place(int row, int p) { return row * 64 + (p ^ row % 8) * VECTOR; }

// The query tile of step s of pair g, which tiles 2 * g to STEPS - 1 see (its tile w: 2 * g + w to
// STEPS - 1). Every other pair goes downwards, and begins with what L2 saw last.
__device__ __forceinline__ int query_tile(int g, int s, int w = 0) {
    return g % 2 == 1 ? 2 * g + w + s : STEPS - 1 - s;
}

// d (64, STEP) = a (64, 64) @ b.T
__device__ __forceinline__ void multiply(float (&d)[STEP / 2], const real* a, const real* b) {
    wgmma_fence();
    wgmma_m64k16<STEP, false, 0, false>(d, a, b);  // overwrites d
#pragma unroll
    for (int k = 16; k < 64; k += 16) wgmma_m64k16<STEP>(d, a + k, b + k);
    wgmma_commit();
}

// d (64, 64) += a (64, STEP) @ b
__device__ __forceinline__ void add(float (&d)[32], unsigned (&a)[STEP / 16][4], const real* b) {
    wgmma_pin(d), wgmma_pin(a);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < STEP / 16; k++) wgmma_m64k16<64, ACROSS>(d, a[k], b + k * 16 * 64);
    wgmma_commit();
}

// Stores d (64, 64) * factor as rows of one head, from `row` on; TRANSPOSED: d.T. They pass through
// `tile`, so that 8 lanes store the 128 bytes of a row (coalesced).
template <bool TRANSPOSED>
__device__ __forceinline__ void store_rows(real* head, const float (&d)[32], float factor,
                                           real* tile, int row, int T, int step) {
    int lane = lane_id(), y = warp_id() % 4 * 16;  // y: the warp's first row of the tile
    compute_here(lane), compute_here(y);  // addresses of all iterations would fill the registers
    auto meet = [] { TRANSPOSED ? named_barrier(3, 128) : __syncwarp(); };  // writers and readers
    meet();  // what was stored there before has been read
#pragma unroll
    for (int i = 0; i < 32; i += TRANSPOSED ? 1 : 2) {
        int r = y + lane / 4 + i / 2 % 2 * 8, c = i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (TRANSPOSED) {
            tile[place(c, r / 8) + r % 8] = to_real(d[i] * factor);
        } else {
            unsigned* to = reinterpret_cast<unsigned*>(tile + place(r, c / 8));
            to[lane % 4] = pack(d[i] * factor, d[i + 1] * factor);
        }
    }
    meet();  // the rows are complete before other lanes read them
#pragma unroll
    for (int i = lane; i < 16 * 8; i += WARP_SIZE) {
        int r = y + i / 8, p = i % 8;
        real* to = head + (size_t)(row + r) * step + p * VECTOR;
        if (row + r < T) store_vec_streaming(to, load_vec(tile + place(r, p)));
    }
}

extern "C" __global__ void __launch_bounds__(512, 1) attention_backward(
    real* __restrict__ dqkv,        // (B, T, 3, NH, HS)
    const real* __restrict__ dout,  // (B, T, NH, HS)
    const real* __restrict__ qkv,   // (B, T, 3, NH, HS)
    const real* __restrict__ out,   // (B, T, NH, HS)
    const float* __restrict__ lse,  // (B, NH, T)  log-sum-exp of each query's scores
    int B, int T, int C, int NH,
    float* __restrict__ sums,       // (GRID, STEPS, STEP, 64)  for dq, in the order of registers
    const __grid_constant__ TensorMap dout_tiles, const __grid_constant__ TensorMap qkv_tiles) {
    extern __shared__ __align__(1024) Vec shared[];
    __shared__ Mbarrier keys_full[2], keys_empty[2], full[STAGES], empty[STAGES];
    __shared__ Mbarrier dscores_full[2], dscores_empty[2], rows_full[2][PAIRS], head_late;
    real* k = shared->at;            // (2, 2, STEP, 64)  double buffer of a pair of tiles
    real* v = k + 4 * TILE;          // (2, 2, STEP, 64)
    real* q = v + 4 * TILE;          // (STAGES, STEP, 64)
    real* dy = q + STAGES * TILE;    // (STAGES, STEP, 64)  of dout
    real* ds = dy + STAGES * TILE;   // (2, 2, STEP keys, STEP queries)  double buffer; dscores
    real* staging = ds + 4 * TILE;   // (STEP, 64)  dq on its way out
    float* rows = reinterpret_cast<float*>(staging + TILE);  // (2 heads, 2, ROWS)  lse, delta
    float4* far = reinterpret_cast<float4*>(sums) + (size_t)blockIdx.x * STEPS * TILE / 4;
    float4* near = reinterpret_cast<float4*>(rows + 4 * ROWS) - FAR * TILE / 4;
    int lane = lane_id(), t = lane % 4, y = warp_id() % 4 * 16;  // y: a warp's first row of a tile
    if (threadIdx.x == 0) {  // counts: a thread, or warps
        for (int i = 0; i < STAGES; i++) mbarrier_init(&full[i], 1), mbarrier_init(&empty[i], 8);
        for (int i = 0; i < 2; i++) {
            mbarrier_init(&keys_full[i], 1), mbarrier_init(&keys_empty[i], 12);
            mbarrier_init(&dscores_full[i], 8), mbarrier_init(&dscores_empty[i], 4);
        }
        for (int i = 0; i < 2 * PAIRS; i++) mbarrier_init(&rows_full[0][0] + i, 3);
        mbarrier_init(&head_late, 8);
    }
    __syncthreads();  // the barriers are initialized before any thread waits on them
    Ring<STAGES> now; Ring<2> pair, turn;  // of q and dy; of k and v; of dscores
    int warp = warp_uniform(warp_id()), role = warp / 4;  // role: the warpgroup's

    if (role == 0) {
        fewer_registers<32>();  // a thread has 128 at launch; these go to dk and dv
        if (warp > 0) {  // three warps: lse to base 2, and delta (sum of dout * out over channels)
            for (int n = blockIdx.x, heads = 0; n < HEADS; n += GRID, heads++) {
                // Consumers are late in the head before, so they are done with the one before it.
                if (heads > 0) mbarrier_wait(&head_late, (heads - 1) % 2);
                float* to = rows + heads % 2 * 2 * ROWS;
                for (int g = PAIRS - 1; g >= 0; g--) {
                    int end = min(2 * g + 2, STEPS) * STEP;
#pragma unroll 2
                    for (int row = 2 * g * STEP + (warp - 1) * 4; row < end; row += 12) {
                        int i = row + lane / 8, query = min(i, T - 1);  // 8 lanes have a row
                        size_t at = (size_t)(n / IN_ROW * T + query) * C + n % IN_ROW * HS;
                        float log_sum = lse[(size_t)n * T + query], delta = 0.0f;
                        Vec a = load_vec(dout + at + lane % 8 * VECTOR);
                        Vec b = load_vec_streaming(out + at + lane % 8 * VECTOR);
                        for (int j = 0; j < VECTOR; j++) delta += to_float(a[j]) * to_float(b[j]);
                        for (int j = 1; j < 8; j *= 2) delta += shuffle_xor(delta, j);
                        if (lane % 8 > 0) continue;
                        to[i] = i < T ? log_sum * LOG2_E : INFINITY;  // past T: probs are 0
                        to[ROWS + i] = i < T ? delta : 0.0f;
                    }
                    mbarrier_arrive_warp(&rows_full[heads % 2][g]);
                }
            }
            return;
        }
        if (lane > 0) return;  // one thread is the producer: it asks TMA
        for (int n = blockIdx.x; n < HEADS; n += GRID) {
            int row = n / IN_ROW * T, column = n % IN_ROW * HS;
            for (int g = PAIRS - 1; g >= 0; g--, pair.next()) {
                Mbarrier* done = &keys_full[pair.index];
                mbarrier_wait(&keys_empty[pair.index], pair.parity ^ 1);
                mbarrier_expect(done, 4 * TILE * sizeof(real));
                for (int w = 0; w < 2; w++) {
                    int first = row + (2 * g + w) * STEP, to = (2 * pair.index + w) * TILE;
                    tma_load_2d_evict_first(k + to, &qkv_tiles, done, C + column, first);
                    tma_load_2d_evict_first(v + to, &qkv_tiles, done, 2 * C + column, first);
                }
                for (int s = 0; s < STEPS - 2 * g; s++, now.next()) {
                    int first = row + query_tile(g, s) * STEP;
                    done = &full[now.index];
                    mbarrier_wait(&empty[now.index], now.parity ^ 1);
                    mbarrier_expect(done, 2 * TILE * sizeof(real));
                    tma_load_2d(q + now.index * TILE, &qkv_tiles, done, column, first);
                    tma_load_2d(dy + now.index * TILE, &dout_tiles, done, column, first);
                }
            }
        }
        return;
    }

    if (role == 1) {  // dq.T += k.T @ dscores.T, pair after pair
        far += threadIdx.x % 128, near += threadIdx.x % 128;  // what this thread has stored
        auto sums_of = [&](int i) { return (i < FAR ? far : near) + i * TILE / 4; };
        for (int n = blockIdx.x; n < HEADS; n += GRID) {
            real* dq = dqkv + (size_t)(n / IN_ROW * T) * 3 * C + n % IN_ROW * HS;  // (T, HS)
            float d[32];  // (64 channels, STEP queries)
            float4(&sum)[8] = reinterpret_cast<float4(&)[8]>(d), ahead[8];  // of the next step
            bool stays = false;  // the next step has the same queries
            for (int g = PAIRS - 1; g >= 0; g--, pair.next()) {
                unsigned factors[2][STEP / 16][4];  // k.T: this warp's 16 channels
                mbarrier_wait(&keys_full[pair.index], pair.parity);
#pragma unroll
                for (int j = 0; j < 2 * STEP / 16; j++) {
                    int from = place(j * 16 + lane / 16 * 8 + lane % 8, y / 8 + lane / 8 % 2);
                    ldmatrix_x4_trans(factors[j / 4][j % 4], k + 2 * pair.index * TILE + from);
                }
                mbarrier_arrive_warp(&keys_empty[pair.index]);
                for (int s = 0; s < STEPS - 2 * g; s++, turn.next()) {
                    int i = query_tile(g, s);
                    bool begun = i >= 2 * g + 2;  // by an earlier pair
#pragma unroll
                    for (int j = 0; j < 8 && !stays; j++) sum[j] = begun ? ahead[j] : float4{};
                    int next_g = s + 1 < STEPS - 2 * g ? g : g - 1;
                    int next = query_tile(next_g, next_g == g ? s + 1 : 0);
                    stays = next == i && g > 0;
                    bool load = next_g >= 0 && next >= 2 * next_g + 2 && !stays;
#pragma unroll
                    for (int j = 0; j < 8 && load; j++) ahead[j] = sums_of(next)[j * 128];
                    const real* now_ds = ds + 2 * turn.index * TILE;
                    mbarrier_wait(&dscores_full[turn.index], turn.parity);
                    if (i > 2 * g) add(d, factors[1], now_ds + TILE);  // the second keys, if seen
                    add(d, factors[0], now_ds);
                    wgmma_wait<0>(d);
                    mbarrier_arrive_warp(&dscores_empty[turn.index]);
                    if (g == 0) {  // no further pair adds to these sums
                        store_rows<true>(dq, d, rsqrtf(HS), staging, i * STEP, T, 3 * C);
                        continue;
                    }
#pragma unroll
                    for (int j = 0; j < 8 && !stays; j++) sums_of(i)[j * 128] = sum[j];
                }
            }
        }
        return;
    }
    // dk and dv: warpgroup w has one tile of keys of each pair.
    more_registers<176>();
    int w = role - 2, own_pair = place(y + lane / 4, 0) / 2 + t;  // of a lane's first key
    float scale = rsqrtf(HS) * LOG2_E;  // exp(score / sqrt(HS)) is 2^(score * scale)
    float probs[STEP / 2], dscores[STEP / 2];  // transposed: (64 keys, STEP queries)
    auto skip = [&] {  // a step whose queries all precede this warpgroup's keys
        mbarrier_wait(&full[now.index], now.parity);
        mbarrier_arrive_warp(&empty[now.index]), now.next();
        mbarrier_wait(&dscores_empty[turn.index], turn.parity ^ 1);
        mbarrier_arrive_warp(&dscores_full[turn.index]), turn.next();
    };
    auto start_scores = [&] {
        mbarrier_wait(&full[now.index], now.parity);  // the copies have arrived
        multiply(probs, k + (2 * pair.index + w) * TILE, q + now.index * TILE);
    };
    auto start_pair = [&](int g) {
        mbarrier_wait(&keys_full[pair.index], pair.parity);
        if (w == 1 && g % 2 == 1) skip();
        if (2 * g + w < STEPS) start_scores();
    };
    start_pair(PAIRS - 1);
    wgmma_wait<0>(probs);
    for (int n = blockIdx.x, heads = 0; n < HEADS; n += GRID, heads++) {
        real* gradient = dqkv + (size_t)(n / IN_ROW * T) * 3 * C + n % IN_ROW * HS;  // (T, HS)
        const float *log_sums = rows + heads % 2 * 2 * ROWS, *deltas = log_sums + ROWS;
        for (int g = PAIRS - 1; g >= 0; g--) {
            int own = 2 * g + w, before = -1;  // before: the previous stage
            real* own_v = v + (2 * pair.index + w) * TILE;
            float dk[32] = {}, dv[32] = {};
            mbarrier_wait(&rows_full[heads % 2][g], heads / 2 % 2);
            // Done with the head before. Not earlier: the rows of this one must have begun.
            if (g == min(1, PAIRS - 1)) mbarrier_arrive_warp(&head_late);
            for (int s = 0; s < STEPS - own; s++) {
                int i = query_tile(g, s, w);
                const real *now_q = q + now.index * TILE, *now_dy = dy + now.index * TILE;
                unsigned rounded_probs[STEP / 16][4], rounded[STEP / 16][4];
                multiply(dscores, own_v, now_dy);
                if (s > 0) mbarrier_arrive_warp(&empty[before]);
#pragma unroll
                for (int j = 0; j < STEP / 2 && i == own; j++) {  // the tile on the diagonal:
                    int query = j / 4 * 8 + 2 * t + j % 2;        // some queries precede some keys
                    if (query < y + lane / 4 + j / 2 % 2 * 8) probs[j] = -INFINITY;
                }
#pragma unroll
                for (int j = 0; j < STEP / 2; j++) {
                    int query = i * STEP + j / 4 * 8 + 2 * t + j % 2;
                    probs[j] = fast_exp2(probs[j] * scale - log_sums[query]);
                }
                wgmma_factors(rounded_probs, probs);
                add(dv, rounded_probs, now_dy);
                wgmma_wait<1>(dscores);  // dv's product may still run
#pragma unroll
                for (int j = 0; j < STEP / 2; j++) {
                    int query = i * STEP + j / 4 * 8 + 2 * t + j % 2;
                    dscores[j] = probs[j] * (dscores[j] - deltas[query]);
                }
                wgmma_factors(rounded, dscores);
                add(dk, rounded, now_q);
                before = now.index, now.next();
                if (s + 1 < STEPS - own) start_scores();  // behind the products for dk and dv
                mbarrier_wait(&dscores_empty[turn.index], turn.parity ^ 1);
                unsigned* now_ds = reinterpret_cast<unsigned*>(ds + (2 * turn.index + w) * TILE);
#pragma unroll
                for (int p = 0; p < 8; p++) {  // of one key, and of the one 8 later
                    now_ds[own_pair ^ p * 4] = rounded[p / 2][p % 2 * 2];
                    now_ds[(own_pair ^ p * 4) + 8 * 32] = rounded[p / 2][p % 2 * 2 + 1];
                }
                tma_store_fence();  // makes the writes visible to wgmma (async proxy)
                mbarrier_arrive_warp(&dscores_full[turn.index]);
                turn.next();
                wgmma_wait<0>(probs, dk, dv);
            }
            if (before >= 0) mbarrier_arrive_warp(&empty[before]);
            if (w == 1 && g % 2 == 0) skip();
            Mbarrier* done = &keys_empty[pair.index];
            pair.next();
            if (g > 0 || n + GRID < HEADS) start_pair(g > 0 ? g - 1 : PAIRS - 1);
            named_barrier(1 + w, 128);  // all warps have read v before results overwrite it
            store_rows<false>(gradient + 2 * C, dv, 1.0f, own_v, own * STEP, T, 3 * C);
            store_rows<false>(gradient + C, dk, rsqrtf(HS), own_v, own * STEP, T, 3 * C);
            tma_store_fence();  // these accesses come before TMA's next copy to the tile
            mbarrier_arrive_warp(done);
            wgmma_wait<0>(probs);  // the next pair's first scores, asked for under the stores
        }
    }
}
