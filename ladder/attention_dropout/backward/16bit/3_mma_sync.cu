// attention_dropout backward, 16bit rung 3: mma.sync, mask in the D layout and transposed
// Before: rung 2 computes with float32 multiply-adds. attention.backward 16bit rung 7 multiplies on
//         tensor cores (mma.sync), and copies tiles ahead with cp.async.
// Change: the kernels of attention.backward 16bit rung 7, with the mask. The kernel for dq has
//         scores (query, key), the one for dk and dv the transposed (key, query). In both layouts
//         the same two lanes hold the 16 elements of a Philox call. Only the order of the 16
//         differs.
// Expect: the products take a tenth of the time of rung 2; the random bytes take as long as before.
// Needs:  real in (float16, bfloat16); sm >= 80; warp == 32; HS <= 64; HS % vector == 0
// Define: HS = C // NH; WIDTH = ceil_div(HS, 16) * 16; WARPS = 4; TILE = 16 * WARPS; STEP = 32;
//         ROWS = 4
// Launch: attention_dropout_backward_delta<<<(B * NH, ceil_div(T, ROWS)), ROWS * warp>>>
// Launch: attention_dropout_backward_dkdv<<<(B * NH, ceil_div(T, TILE)), WARPS * warp>>>
// Launch: attention_dropout_backward_dq<<<(B * NH, ceil_div(T, TILE)), WARPS * warp>>>
// Scratch: float32 delta[B, NH, T]
// Rounds: probs and dscores, factors of the gradients
// After:  attention.backward 16bit-7
// Left:   the tensor cores wait while random numbers are computed -> rung 4.

#include "async.cuh"
#include "attention_mask.cuh"
#include "fast_math.cuh"
#include "mma_real.cuh"

constexpr int STRIDE = WIDTH + 8;  // padded: 8 rows of a tile begin in different banks

// Computes delta (B, NH, T) = sum of dout * out over the channels.
extern "C" __global__ void attention_dropout_backward_delta(
    real* __restrict__ dqkv,           // (B, T, 3, NH, HS)
    const real* __restrict__ dout,     // (B, T, NH, HS)
    const real* __restrict__ qkv,      // (B, T, 3, NH, HS)
    const real* __restrict__ out,      // (B, T, NH, HS)
    const float* __restrict__ lse,     // (B, NH, T)  log-sum-exp of each query's scores
    const unsigned* __restrict__ rng,  // (4)  seed low, seed high, step, micro-step
    int B, int T, int C, int NH, float p, unsigned stream,
    float* __restrict__ delta) {       // (B, NH, T)
    int query = blockIdx.y * ROWS + warp_id();
    if (query >= T) return;  // whole warps return, so no shuffle below misses a lane
    int b = blockIdx.x / NH, h = blockIdx.x % NH;
    size_t at = ((size_t)b * T + query) * C + h * HS;
    float sum = 0.0f;
    for (int i = lane_id(); i < HS; i += WARP_SIZE) {
        sum += to_float(dout[at + i]) * to_float(out[at + i]);
    }
    sum = warp_sum(sum);
    if (lane_id() == 0) delta[(size_t)blockIdx.x * T + query] = sum;
}

// Starts to copy STEP rows of one head, from row `first` on, to shared memory. Rows past T and
// channels past HS become zeros.
__device__ __forceinline__ void copy_tile(real* tile /* (STEP, STRIDE) */,
                                          const real* head /* (T, HS), rows `step` apart */,
                                          int first, int T, int step) {
#pragma unroll
    for (int t = threadIdx.x * VECTOR; t < STEP * WIDTH; t += WARPS * WARP_SIZE * VECTOR) {
        int row = t / WIDTH, i = t % WIDTH;
        bool inside = first + row < T && i < HS;
        const real* from = inside ? head + (size_t)(first + row) * step + i : head;
        cp_async_16_or_zero(tile + row * STRIDE + i, from, inside);
    }
}

// d (16, STEP) += a (16, WIDTH) @ tile.T. Each D matrix (16 x 8) covers 8 rows of the tile.
__device__ __forceinline__ void add_transposed(float (&d)[STEP / 8][4],
                                               const unsigned (&a)[WIDTH / 16][4],
                                               const real* tile /* (STEP, STRIDE) */) {
    int lane = lane_id();
    const real* corner = tile + (lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 8;
#pragma unroll
    for (int i = 0; i < WIDTH / 16; i++) {
#pragma unroll
        for (int n = 0; n < STEP / 16; n++) {  // 16 rows: two B matrices per ldmatrix
            unsigned b[4];
            ldmatrix_x4(b, corner + n * 16 * STRIDE + i * 16);
            mma_m16n8k16(d[2 * n], a[i], {b[0], b[1]});
            mma_m16n8k16(d[2 * n + 1], a[i], {b[2], b[3]});
        }
    }
}

// d (16, WIDTH) += a (16, STEP) @ tile, with a rounded to real. Each D matrix (16 x 8) covers 8
// channels.
__device__ __forceinline__ void add(float (&d)[WIDTH / 8][4], const float (&a)[STEP / 8][4],
                                    const real* tile /* (STEP, STRIDE) */) {
    int lane = lane_id();
    const real* corner = tile + lane % 16 * STRIDE + lane / 16 * 8;
#pragma unroll
    for (int n = 0; n < STEP / 16; n++) {  // two neighbouring D matrices form one A matrix
        unsigned rounded[4] = {
            pack(a[2 * n][0], a[2 * n][1]),
            pack(a[2 * n][2], a[2 * n][3]),
            pack(a[2 * n + 1][0], a[2 * n + 1][1]),
            pack(a[2 * n + 1][2], a[2 * n + 1][3]),
        };
#pragma unroll
        for (int i = 0; i < WIDTH / 16; i++) {  // 16 channels: two B matrices per ldmatrix
            unsigned b[4];
            ldmatrix_x4_trans(b, corner + n * 16 * STRIDE + i * 16);
            mma_m16n8k16(d[2 * i], rounded, {b[0], b[1]});
            mma_m16n8k16(d[2 * i + 1], rounded, {b[2], b[3]});
        }
    }
}

// Loads 16 rows of one head as A matrices of 16 channels each. Rows past T and channels past HS
// become zeros. This lane holds rows `row` and `row` + 8.
__device__ __forceinline__ void load_rows(unsigned (&a)[WIDTH / 16][4],
                                          const real* head /* (T, HS), rows `step` apart */,
                                          int row, int T, int step) {
#pragma unroll
    for (int i = 0; i < WIDTH / 16; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int r = row + j % 2 * 8, channel = i * 16 + j / 2 * 8 + lane_id() % 4 * 2;
            a[i][j] = 0;
            if (r < T && channel < HS) {
                a[i][j] = *reinterpret_cast<const unsigned*>(head + (size_t)r * step + channel);
            }
        }
    }
}

// Stores d (16, WIDTH) * factor as rows of one head, laid out as in load_rows.
__device__ __forceinline__ void store_rows(real* head, const float (&d)[WIDTH / 8][4], float factor,
                                           int row, int T, int step) {
#pragma unroll
    for (int i = 0; i < WIDTH / 8; i++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int channel = i * 8 + lane_id() % 4 * 2;
            if (row + r * 8 < T && channel < HS) {
                *reinterpret_cast<unsigned*>(head + (size_t)(row + r * 8) * step + channel) =
                    pack(d[i][2 * r] * factor, d[i][2 * r + 1] * factor);
            }
        }
    }
}

// Computes dk and dv of TILE keys.
extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE) attention_dropout_backward_dkdv(
    real* __restrict__ dqkv, const real* __restrict__ dout, const real* __restrict__ qkv,
    const real* __restrict__ out, const float* __restrict__ lse, const unsigned* __restrict__ rng,
    int B, int T, int C, int NH, float p, unsigned stream, float* __restrict__ delta) {
    // Double buffers: one tile is read while the other is filled.
    __shared__ alignas(16) real q[2][STEP * STRIDE];      // (STEP, STRIDE)
    __shared__ alignas(16) real dy[2][STEP * STRIDE];     // (STEP, STRIDE)  of dout
    __shared__ float log_sums[2][STEP], deltas[2][STEP];  // lse to base 2, and delta
    int t = lane_id() % 4;
    int b = blockIdx.x / NH, h = blockIdx.x % NH;
    int first = blockIdx.y * TILE;  // blocks with most queries start first
    int key = first + warp_id() * 16 + lane_id() / 4;  // this lane has it, and the one 8 later
    const real* head = qkv + (size_t)b * T * 3 * C + h * HS;   // (T, HS)  q; rows 3 * C apart
    const real* head_out = dout + (size_t)b * T * C + h * HS;  // (T, HS)  dout; rows C apart
    unsigned k[WIDTH / 16][4], v[WIDTH / 16][4];
    load_rows(k, head + C, key, T, 3 * C);
    load_rows(v, head + 2 * C, key, T, 3 * C);

    float scale = rsqrtf(HS) * LOG2_E;  // exp(score / sqrt(HS)) is 2^(score * scale)
    float dk[WIDTH / 8][4] = {}, dv[WIDTH / 8][4] = {};
    AttentionMask mask(rng, stream, p, blockIdx.x, T);
    auto copy_queries = [&](int start, int to) {
        copy_tile(q[to], head, start, T, 3 * C);
        copy_tile(dy[to], head_out, start, T, C);
        cp_async_commit();
        if (threadIdx.x < STEP) {
            int query = start + threadIdx.x;
            size_t row = (size_t)blockIdx.x * T + query;
            log_sums[to][threadIdx.x] = query < T ? lse[row] * LOG2_E : INFINITY;  // probs = 0
            deltas[to][threadIdx.x] = query < T ? delta[row] : 0.0f;
        }
    };
    copy_queries(first, 0);  // earlier queries do not see these keys
    for (int start = first, turn = 0; start < T; start += STEP, turn ^= 1) {
        cp_async_wait<0>();
        __syncthreads();  // copies arrive before they are read; the pair filled next has been read
        if (start + STEP < T) copy_queries(start + STEP, turn ^ 1);

        unsigned kept = mask.draw_lane<STEP / 2, true>(start + 2 * t, key);
        float probs[STEP / 8][4] = {}, dscores[STEP / 8][4] = {};  // transposed: 16 keys, 8 queries
        add_transposed(probs, k, q[turn]);
        add_transposed(dscores, v, dy[turn]);
#pragma unroll
        for (int n = 0; n < STEP / 8; n++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int query = n * 8 + 2 * t + j % 2;  // within the tile
                bool sees = key + j / 2 * 8 <= start + query;
                float prob = sees ? fast_exp2(probs[n][j] * scale - log_sums[turn][query]) : 0.0f;
                float factor = kept >> mask.lane_bit<true>(n * 4 + j) & 1 ? mask.scale : 0.0f;
                probs[n][j] = prob * factor;
                dscores[n][j] = prob * (dscores[n][j] * factor - deltas[turn][query]);
            }
        }
        add(dv, probs, dy[turn]);
        add(dk, dscores, q[turn]);
    }
    real* gradient = dqkv + (size_t)b * T * 3 * C + h * HS;  // (T, HS)  dq; rows 3 * C apart
    store_rows(gradient + C, dk, rsqrtf(HS), key, T, 3 * C);
    store_rows(gradient + 2 * C, dv, 1.0f, key, T, 3 * C);
}

// Computes dq of TILE queries. The launch bounds allow 168 registers per thread, so that three
// blocks fit on an SM.
extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE, 3) attention_dropout_backward_dq(
    real* __restrict__ dqkv, const real* __restrict__ dout, const real* __restrict__ qkv,
    const real* __restrict__ out, const float* __restrict__ lse, const unsigned* __restrict__ rng,
    int B, int T, int C, int NH, float p, unsigned stream, float* __restrict__ delta) {
    __shared__ alignas(16) real k[2][STEP * STRIDE];  // (STEP, STRIDE)
    __shared__ alignas(16) real v[2][STEP * STRIDE];  // (STEP, STRIDE)
    int t = lane_id() % 4;
    int b = blockIdx.x / NH, h = blockIdx.x % NH;
    int first = (gridDim.y - 1 - blockIdx.y) * TILE;  // blocks with most keys start first
    int query = first + warp_id() * 16 + lane_id() / 4;  // this lane has it, and the one 8 later
    const real* head = qkv + (size_t)b * T * 3 * C + h * HS;  // (T, HS)  q; rows 3 * C apart
    unsigned q[WIDTH / 16][4], dy[WIDTH / 16][4];
    load_rows(q, head, query, T, 3 * C);
    load_rows(dy, dout + (size_t)b * T * C + h * HS, query, T, C);
    float log_sums[2], deltas[2];
    for (int r = 0; r < 2; r++) {
        size_t row = (size_t)blockIdx.x * T + min(query + r * 8, T - 1);
        log_sums[r] = lse[row] * LOG2_E;
        deltas[r] = delta[row];
    }

    float scale = rsqrtf(HS) * LOG2_E;  // exp(score / sqrt(HS)) is 2^(score * scale)
    float dq[WIDTH / 8][4] = {};
    AttentionMask mask(rng, stream, p, blockIdx.x, T);
    int end = min(first + TILE, T);
    auto copy_keys = [&](int start, int to) {
        copy_tile(k[to], head + C, start, T, 3 * C);
        copy_tile(v[to], head + 2 * C, start, T, 3 * C);
        cp_async_commit();
    };
    copy_keys(0, 0);
    for (int start = 0, turn = 0; start < end; start += STEP, turn ^= 1) {
        cp_async_wait<0>();
        __syncthreads();  // copies arrive before they are read; the pair filled next has been read
        if (start + STEP < end) copy_keys(start + STEP, turn ^ 1);  // later keys are in the future

        unsigned kept = mask.draw_lane<STEP / 2>(query, start + 2 * t);
        float scores[STEP / 8][4] = {}, dscores[STEP / 8][4] = {};  // 16 queries, 8 keys
        add_transposed(scores, q, k[turn]);
        add_transposed(dscores, dy, v[turn]);
#pragma unroll
        for (int n = 0; n < STEP / 8; n++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                bool sees = start + n * 8 + 2 * t + j % 2 <= query + j / 2 * 8;
                float prob = sees ? fast_exp2(scores[n][j] * scale - log_sums[j / 2]) : 0.0f;
                float factor = kept >> mask.lane_bit(n * 4 + j) & 1 ? mask.scale : 0.0f;
                dscores[n][j] = prob * (dscores[n][j] * factor - deltas[j / 2]);
            }
        }
        add(dq, dscores, k[turn]);
    }
    store_rows(dqkv + (size_t)b * T * 3 * C + h * HS, dq, rsqrtf(HS), query, T, 3 * C);
}
