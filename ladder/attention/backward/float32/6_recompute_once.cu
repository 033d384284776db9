// attention backward, float32 rung 6: recompute once, fused dQ, dK and dV
// Before: rung 5 computes scores and dprobs twice, once for dk and dv and once for dq. A thread has
//         4 x 4 of them: one load from shared memory serves 8 multiply-adds or fewer. Reads
//         take 1.6 times the clocks of the multiply-adds.
// Change: one kernel goes through the queries of TILE keys, and adds to dq in memory with atomics:
//         five products instead of seven. One half of a block computes scores, probs and dv, the
//         other half dprobs, dscores and dk. With half of the threads per product, a thread has 8 x
//         8 accumulators. cp.async copies the next q and dout while dq is computed.
// Expect: 5/7 of the multiply-adds. In four of five products, a load serves 16 of them, and keeps
//         shared memory busy for no more than the four cycles that they take: bound by float32
//         arithmetic. One atomic per 320 multiply-adds; a warp's 32 atomics go to neighbouring
//         elements.
// Needs:  real == float32; sm >= 80; warp == 32; HS <= 64; HS % vector == 0;
//         SHARED <= shared_bytes
// Define: HS = C // NH; WIDTH = 64; TILE = 64; THREADS = 128; EACH = 8; ROWS = 4;
//         SHARED = 16 * TILE * (WIDTH + 4) + 8 * TILE * (TILE + 16)
// Launch: attention_backward_delta<<<(B * NH, ceil_div(T, ROWS)), ROWS * warp>>>
// Launch: attention_backward<<<(B * NH, ceil_div(T, TILE)), THREADS, SHARED>>>
// Scratch: float32 delta[B, NH, T]
// Deterministic: no, the blocks of a head's keys add to dq in any order
// After:  5
// Rewrite: one kernel replaces two, with another division of the work.
// Left:   tiles on the diagonal are computed whole, almost half of each in vain -> rung 7.

#include "async.cuh"
#include "fast_math.cuh"
#include "portable.cuh"

// Padding: rows that are accessed together start in different banks, be it 16 bytes of each of
// eight neighbouring rows, or 64 bytes of each of two.
constexpr int STRIDE = WIDTH + 4;
constexpr int P_STRIDE = TILE + 16;

// Computes delta (B, NH, T) = sum of dout * out over the channels, and clears dq, to which the
// blocks of all keys add.
extern "C" __global__ void attention_backward_delta(
    real* __restrict__ dqkv,        // (B, T, 3, NH, HS)
    const real* __restrict__ dout,  // (B, T, NH, HS)
    const real* __restrict__ qkv,   // (B, T, 3, NH, HS)
    const real* __restrict__ out,   // (B, T, NH, HS)
    const float* __restrict__ lse,  // (B, NH, T)  log-sum-exp of each query's scores
    int B, int T, int C, int NH,
    float* __restrict__ delta) {    // (B, NH, T)
    int query = blockIdx.y * ROWS + warp_id();
    if (query >= T) return;  // whole warps return, so no shuffle below misses a lane
    int b = blockIdx.x / NH, h = blockIdx.x % NH;
    size_t row = (size_t)b * T + query, at = row * C + h * HS;
    float sum = 0.0f;
    for (int i = lane_id(); i < HS; i += WARP_SIZE) {
        sum += dout[at + i] * out[at + i];
        dqkv[row * 3 * C + h * HS + i] = 0.0f;
    }
    sum = warp_sum(sum);
    if (lane_id() == 0) delta[(size_t)blockIdx.x * T + query] = sum;
}

// Starts to copy TILE rows of one head, from row `first` on, to shared memory. Rows past T and
// channels past HS become zeros.
__device__ __forceinline__ void copy_tile(real* tile /* (TILE, STRIDE) */,
                                          const real* head /* (T, HS), rows `step` apart */,
                                          int first, int T, int step) {
    constexpr int PIECES = WIDTH / VECTOR;  // 16-byte pieces per row
    int y = threadIdx.x / PIECES, i = threadIdx.x % PIECES * VECTOR;
    const real* from = head + (size_t)(first + y) * step + i;
    real* to = tile + y * STRIDE + i;
    for (int s = 0; s < TILE; s += THREADS / PIECES) {
        cp_async_16_or_zero(to + s * STRIDE, from + (size_t)s * step, first + y + s < T && i < HS);
    }
}

// sums (query, key) += left @ right.T
__device__ __forceinline__ void add_products(float (&sums)[EACH][EACH], const real* left,
                                             const real* right) {
#pragma unroll 2
    for (int i = 0; i < WIDTH; i += 4) {
        Vec as[EACH];
        for (int r = 0; r < EACH; r++) {
            as[r] = load_vec(left + r * 8 * STRIDE + i);
        }
        for (int c = 0; c < EACH; c++) {
            Vec bs = load_vec(right + c * 8 * STRIDE + i);
            for (int u = 0; u < 4; u++) {
                for (int r = 0; r < EACH; r++) {
                    sums[r][c] += as[r][u] * bs[u];
                }
            }
        }
    }
}

// sums (key, channel) += weights.T @ values. A row of weights is permuted: four neighbouring
// columns are the four keys, 8 apart, that one thread computed.
__device__ __forceinline__ void add_across(float (&sums)[EACH][EACH], const real* weights,
                                           const real* values) {
#pragma unroll 4
    for (int query = 0; query < TILE; query++) {
        Vec as[2], bs[2];
        for (int j = 0; j < 2; j++) {
            as[j] = load_vec(weights + query * P_STRIDE + j * 32);
            bs[j] = load_vec(values + query * STRIDE + j * 32);
        }
        for (int c = 0; c < EACH; c++) {
            for (int i = 0; i < EACH; i++) {
                sums[c][i] += as[c / 4][c % 4] * bs[i / 4][i % 4];
            }
        }
    }
}

// dq (query, channel) += ds @ k
__device__ __forceinline__ void add_dq(float (&dq)[EACH][4], const real* ds, const real* k) {
    for (int c = 0; c < EACH; c += 4) {
#pragma unroll 2
        for (int i = 0; i < 8; i++) {
            Vec as[EACH];
            for (int r = 0; r < EACH; r++) {
                as[r] = load_vec(ds + r * 8 * P_STRIDE + c * 8 + i * 4);
            }
            for (int u = 0; u < 4; u++) {
                Vec bs = load_vec(k + (c * 8 + i + u * 8) * STRIDE);
                for (int w = 0; w < 4; w++) {
                    for (int r = 0; r < EACH; r++) {
                        dq[r][w] += as[r][u] * bs[w];
                    }
                }
            }
        }
    }
}

// Computes dk and dv of TILE keys, and adds their contribution to dq. The launch bounds allow 255
// registers per thread, so that two blocks fit on an SM.
extern "C" __global__ void __launch_bounds__(THREADS, 2) attention_backward(
    real* __restrict__ dqkv, const real* __restrict__ dout, const real* __restrict__ qkv,
    const real* __restrict__ out, const float* __restrict__ lse, int B, int T, int C, int NH,
    float* __restrict__ delta) {
    extern __shared__ Vec shared[];
    real* q = shared->at;           // (TILE, STRIDE)
    real* k = q + TILE * STRIDE;    // (TILE, STRIDE)
    real* dy = k + TILE * STRIDE;   // (TILE, STRIDE)  of dout
    real* v = dy + TILE * STRIDE;   // (TILE, STRIDE)
    real* p = v + TILE * STRIDE;    // (TILE, P_STRIDE)  probs (query, key); keys permuted
    real* ds = p + TILE * P_STRIDE; // (TILE, P_STRIDE)  dscores / sqrt(HS); keys permuted
    __shared__ float rows[2][TILE]; // per query: lse to base 2; delta / sqrt(HS)
    int t = threadIdx.x, lane = t % 32;
    int half = t / TILE;  // half 0: scores, probs, dv; half 1: dprobs, dscores, dk
    // The 64 threads of a half are 8 x 8 pairs of x and y. For scores and dprobs, a thread has
    // queries y + r * 8 and keys x + c * 8. For dv and dk, it has keys y + c * 8, channels x * 4 to
    // x * 4 + 3, and the four channels 32 later. Threads t and t ^ 1 have the same x, threads t and
    // t ^ 2 the same y, so that shared memory can serve their loads at the same time.
    int x = t / 2 % 8, y = t % TILE / 32 * 4 + t / 16 % 2 * 2 + t % 2;
    // For dq, all 128 threads are 16 x 8: queries group + r * 8, channels piece * 4 to piece * 4 +
    // 3.
    int piece = t / 2 % 16, group = t / 32 * 2 + t % 2;
    int b = blockIdx.x / NH, h = blockIdx.x % NH;
    int first = blockIdx.y * TILE;  // blocks with most queries start first
    const real* head = qkv + (size_t)b * T * 3 * C + h * HS;     // (T, HS)  q; rows 3 * C apart
    const real* head_out = dout + (size_t)b * T * C + h * HS;    // (T, HS)  dout; rows C apart
    real* gradient = dqkv + (size_t)b * T * 3 * C + h * HS;      // (T, HS)  dq; rows 3 * C apart
    const float* numbers = (half ? delta : lse) + (size_t)blockIdx.x * T;
    float scale = rsqrtf(HS);
    float factor = half ? scale : LOG2_E;  // exp(score * scale) is 2^(score * scale * LOG2_E)
    auto number = [&](int start) {  // this thread's entry of `rows`; past row T, it makes probs 0
        int query = start + t % TILE;
        return query < T ? numbers[query] : half ? 0.0f : INFINITY;
    };

    copy_tile(k, head + C, first, T, 3 * C);
    copy_tile(v, head + 2 * C, first, T, 3 * C);
    copy_tile(q, head, first, T, 3 * C);
    copy_tile(dy, head_out, first, T, C);
    cp_async_commit();
    float next = number(first);

    float sums[EACH][EACH] = {};  // dv or dk of keys y + c * 8, eight channels each
    for (int start = first; start < T; start += TILE) {  // earlier queries do not see these keys
        rows[half][t % TILE] = next * factor;
        cp_async_wait<0>();
        __syncthreads();  // copies arrive before they are read; ds and p are read before rewriting

        float products[EACH][EACH] = {};  // scores or dprobs of queries y + r * 8, keys x + c * 8
        const real* left = (half ? dy : q) + y * STRIDE;
        const real* right = (half ? v : k) + x * STRIDE;
        add_products(products, left, right);
        if (half == 0) {
            for (int r = 0; r < EACH; r++) {
                float log_sum = rows[0][y + r * 8];
                for (int c = 0; c < EACH; c += 4) {
                    Vec probs;
                    for (int u = 0; u < 4; u++) {
                        float score = products[r][c + u] * (scale * LOG2_E);
                        bool sees = start > first || x + (c + u) * 8 <= y + r * 8;
                        probs[u] = sees ? fast_exp2(score - log_sum) : 0.0f;
                    }
                    store_vec(p + (y + r * 8) * P_STRIDE + c * 8 + x * 4, probs);
                }
            }
        }
        __syncthreads();  // p is complete before the other half reads it
        if (half == 1) {
            for (int r = 0; r < EACH; r++) {
                float row_delta = rows[1][y + r * 8];
                for (int c = 0; c < EACH; c += 4) {
                    int at = (y + r * 8) * P_STRIDE + c * 8 + x * 4;
                    Vec probs = load_vec(p + at), dscores;
                    for (int u = 0; u < 4; u++) {
                        dscores[u] = probs[u] * (products[r][c + u] * scale - row_delta);
                    }
                    store_vec(ds + at, dscores);
                }
            }
        }
        __syncthreads();  // ds is complete before any thread reads it

        const real* weights = (half ? ds : p) + y * 4;
        const real* values = (half ? q : dy) + x * 4;
        add_across(sums, weights, values);
        __syncthreads();  // all threads have read q, dout and p before they are overwritten
        if (start + TILE < T) {
            copy_tile(q, head, start + TILE, T, 3 * C);
            copy_tile(dy, head_out, start + TILE, T, C);
            next = number(start + TILE);
        }
        cp_async_commit();

        float dq[EACH][4] = {};  // of queries group + r * 8, four channels each
        const real* own = ds + group * P_STRIDE;
        add_dq(dq, own, k + piece * 4);
        // dq passes through p, which is free now, so that a warp's 32 atomics go to 32 neighbouring
        // elements (coalesced).
        for (int r = 0; r < EACH; r++) {
            Vec channels;
            for (int c = 0; c < 4; c++) {
                channels[c] = dq[r][c];
            }
            store_vec(p + (group + r * 8) * P_STRIDE + piece * 4, channels);
        }
        __syncwarp();  // the warp's rows are complete before other lanes read them
        real* to = gradient + (size_t)start * 3 * C + lane;
        int last = T - 1 - start;  // rows past T have dq = 0, which any row can be given
#pragma unroll 4
        for (int s = 0; s < 2 * EACH; s++) {
            int row = t / 32 * 2 + s / 2 * 8 + s % 2;
#pragma unroll
            for (int i = 0; i < WIDTH; i += 32) {
                if (i + lane >= HS) break;
                atomicAdd(to + min(row, last) * (3 * C) + i, p[row * P_STRIDE + i + lane]);
            }
        }
    }

    for (int c = 0; c < EACH; c++) {
        int key = first + y + c * 8;
        if (key >= T) break;
        for (int j = 0; j < 2; j++) {
            int i = x * 4 + j * 32;
            if (i >= HS) break;
            Vec result;
            for (int w = 0; w < 4; w++) {
                result[w] = sums[c][j * 4 + w];
            }
            store_vec(gradient + (size_t)key * 3 * C + (half ? C : 2 * C) + i, result);
        }
    }
}
