// attention forward, float32 rung 7: register tiling (8 x 8 scores per thread)
// Before: in rung 6, a thread has 4 x 4 scores: one load from shared memory serves 8 multiply-adds
//         or fewer. Reads from shared memory take 1.6 times the clocks of the multiply-adds. Tiles
//         are copied one element at a time, while nothing else happens.
// Change: a thread has 8 queries, and 8 scores and 8 output channels of each. All loads have 16
//         bytes. cp.async copies the next k while v is multiplied, and the next v while k is
//         multiplied, each into its only buffer. Queries, and so their weights, belong to warps.
// Expect: 16 multiply-adds for every load. A load keeps shared memory busy for at most four cycles,
//         in which an SM (streaming multiprocessor) does 16 warp-wide multiply-adds: bound by
//         float32 arithmetic. Two barriers per tile instead of three. Few warps fit, but a thread's
//         64 accumulators do not wait for each other.
// Needs:  real == float32; sm >= 80; warp == 32; HS <= 64; HS % vector == 0;
//         SHARED <= shared_bytes
// Define: HS = C // NH; WIDTH = ceil_div(HS, 32) * 32; QUERIES = 128; KEYS = 64; EACH = 8;
//         SHARED = 4 * (QUERIES + 2 * KEYS) * (WIDTH + 4) + 4 * QUERIES * (KEYS + 16)
// Launch: attention_forward<<<(B * NH, ceil_div(T, QUERIES)), QUERIES, SHARED>>>
// After:  6
// Rewrite: threads own other scores, and the tiles are copied and padded in another way.
// Left:   almost half of each block's last two tiles, those on the diagonal, is computed in vain ->
//         rung 8.

#include "async.cuh"
#include "fast_math.cuh"
#include "portable.cuh"

// Padding: rows that are accessed together start in different banks, be it 16 bytes of each of
// eight neighbouring rows, or 64 bytes of each of two.
constexpr int STRIDE = WIDTH + 4;
constexpr int P_STRIDE = KEYS + 16;

// Starts to copy ROWS rows of one head, from row `first` on, to shared memory. Rows past T and
// channels past HS become zeros.
template <int ROWS>
__device__ __forceinline__ void copy_tile(real* tile /* (ROWS, STRIDE) */,
                                          const real* head /* (T, HS), rows `step` apart */,
                                          int first, int T, int step) {
    constexpr int PIECES = WIDTH / VECTOR;  // 16-byte pieces per row
    int y = threadIdx.x / PIECES, i = threadIdx.x % PIECES * VECTOR;
    const real* from = head + (size_t)(first + y) * step + i;
    real* to = tile + y * STRIDE + i;
#pragma unroll
    for (int s = 0; s < ROWS; s += QUERIES / PIECES) {
        cp_async_16_or_zero(to + s * STRIDE, from + (size_t)s * step, first + y + s < T && i < HS);
    }
}

// scores (query, key) += q @ k.T
__device__ __forceinline__ void add_scores(float (&scores)[EACH][EACH], const real* q_row,
                                           const real* k_row) {
#pragma unroll 2
    for (int i = 0; i < WIDTH; i += 4) {
        Vec qs[EACH];
#pragma unroll
        for (int r = 0; r < EACH; r++) {
            qs[r] = load_vec(q_row + r * 16 * STRIDE + i);
        }
#pragma unroll
        for (int c = 0; c < EACH; c++) {
            Vec ks = load_vec(k_row + c * 8 * STRIDE + i);
#pragma unroll
            for (int u = 0; u < 4; u++) {
#pragma unroll
                for (int r = 0; r < EACH; r++) {
                    scores[r][c] += qs[r][u] * ks[u];
                }
            }
        }
    }
}

// sums (query, channel) += p @ v. A row of p is permuted: four neighbouring columns are the four
// keys, 8 apart, that one thread computed.
__device__ __forceinline__ void add_values(float (&sums)[EACH][WIDTH / 8], const real* p_row,
                                           const real* v_piece) {
    for (int k = 0; k < EACH; k += 4) {
#pragma unroll 2
        for (int i = 0; i < 8; i++) {
            Vec ps[EACH];
#pragma unroll
            for (int r = 0; r < EACH; r++) {
                ps[r] = load_vec(p_row + r * 16 * P_STRIDE + k * 8 + i * 4);
            }
#pragma unroll
            for (int u = 0; u < 4; u++) {
#pragma unroll
                for (int c = 0; c < WIDTH / 8; c += 4) {
                    Vec vs = load_vec(v_piece + (k * 8 + i + u * 8) * STRIDE + c * 8);
#pragma unroll
                    for (int w = 0; w < 4; w++) {
#pragma unroll
                        for (int r = 0; r < EACH; r++) {
                            sums[r][c + w] += ps[r][u] * vs[w];
                        }
                    }
                }
            }
        }
    }
}

// The launch bounds allow 255 registers per thread, so that two blocks fit on an SM.
extern "C" __global__ void __launch_bounds__(QUERIES, 2) attention_forward(
    real* __restrict__ out,        // (B, T, C)
    float* __restrict__ lse,       // (B, NH, T)  log-sum-exp of each query's scores
    const real* __restrict__ qkv,  // (B, T, 3, NH, HS)
    int B, int T, int C, int NH) {
    extern __shared__ Vec shared[];
    real* q = shared->at;           // (QUERIES, STRIDE)
    real* k = q + QUERIES * STRIDE; // (KEYS, STRIDE)
    real* v = k + KEYS * STRIDE;    // (KEYS, STRIDE)
    real* p = v + KEYS * STRIDE;    // (QUERIES, P_STRIDE)  exp(score - largest); keys permuted
    // A thread has queries y + r * 16 and keys x + c * 8, for r and c below 8. A warp has all keys
    // of its 32 queries. Threads t and t ^ 1 have the same x, threads t and t ^ 2 the same y, so
    // that shared memory can serve their loads at the same time.
    int t = threadIdx.x;
    int x = t / 2 % 8, y = t / 32 * 4 + t / 16 % 2 * 2 + t % 2;
    const real *q_row = q + y * STRIDE, *k_row = k + x * STRIDE, *v_piece = v + x * 4;
    real* p_row = p + y * P_STRIDE;
    int b = blockIdx.x / NH, h = blockIdx.x % NH;
    int first = (gridDim.y - 1 - blockIdx.y) * QUERIES;  // blocks with most keys start first
    int end = min(first + QUERIES, T);
    const real* head = qkv + (size_t)b * T * 3 * C + h * HS;  // (T, HS)  q; rows 3 * C apart

    float sums[EACH][WIDTH / 8] = {};  // p @ v of query y + r * 16, channels x * 4 + c * 8 to + 3
    float largest[EACH], total[EACH];  // of that query; total: of this thread's keys only
#pragma unroll
    for (int r = 0; r < EACH; r++) {
        largest[r] = -INFINITY;
        total[r] = 0.0f;
    }
    float scale = rsqrtf(HS) * LOG2_E;  // exp(score / sqrt(HS)) is 2^(score * scale)
    copy_tile<QUERIES>(q, head, first, T, 3 * C);
    copy_tile<KEYS>(k, head + C, 0, T, 3 * C);
    cp_async_commit();
    for (int start = 0; start < end; start += KEYS) {  // later keys are in the future
        cp_async_wait<0>();
        __syncthreads();  // k has arrived before it is read; v has been read before its refill
        copy_tile<KEYS>(v, head + 2 * C, start, T, 3 * C);
        cp_async_commit();

        float scores[EACH][EACH] = {};
        add_scores(scores, q_row, k_row);

        if (start + KEYS > first) {  // some keys are in the future of some queries
#pragma unroll
            for (int r = 0; r < EACH; r++) {
#pragma unroll
                for (int c = 0; c < EACH; c++) {
                    if (start + x + c * 8 > first + y + r * 16) scores[r][c] = -INFINITY;
                }
            }
        }
#pragma unroll
        for (int r = 0; r < EACH; r++) {
            float before = largest[r];
#pragma unroll
            for (int c = 0; c < EACH; c++) {
                largest[r] = fmaxf(largest[r], scores[r][c]);
            }
#pragma unroll
            for (int distance = 2; distance <= 8; distance *= 2) {  // over the 8 threads of one y
                largest[r] = fmaxf(largest[r], shuffle_xor(largest[r], distance));
            }
            float rescale = fast_exp2((before - largest[r]) * scale);  // 0 at the first tile
            total[r] *= rescale;
#pragma unroll
            for (int c = 0; c < WIDTH / 8; c++) {
                sums[r][c] *= rescale;
            }
#pragma unroll
            for (int c = 0; c < EACH; c += 4) {
                Vec weights;
#pragma unroll
                for (int u = 0; u < 4; u++) {
                    weights[u] = fast_exp2(scores[r][c + u] * scale - largest[r] * scale);
                    total[r] += weights[u];
                }
                store_vec(p_row + r * 16 * P_STRIDE + c * 8 + x * 4, weights);
            }
        }
        cp_async_wait<0>();
        __syncthreads();  // v and p are complete before they are read; k is read before its refill
        if (start + KEYS < end) copy_tile<KEYS>(k, head + C, start + KEYS, T, 3 * C);
        cp_async_commit();

        add_values(sums, p_row, v_piece);
    }

#pragma unroll
    for (int r = 0; r < EACH; r++) {
#pragma unroll
        for (int distance = 2; distance <= 8; distance *= 2) {
            total[r] += shuffle_xor(total[r], distance);
        }
        int query = first + y + r * 16;
        if (query >= T) continue;  // no shuffle for this query follows
        float inverse = 1.0f / total[r];
#pragma unroll
        for (int c = 0; c < WIDTH / 8; c += 4) {
            int i = x * 4 + c * 8;
            if (i >= HS) break;
            Vec result;
#pragma unroll
            for (int w = 0; w < 4; w++) {
                result[w] = sums[r][c + w] * inverse;
            }
            store_vec(out + ((size_t)b * T + query) * C + h * HS + i, result);
        }
        if (x == 0) {
            lse[(size_t)blockIdx.x * T + query] = largest[r] * rsqrtf(HS) + logf(total[r]);
        }
    }
}
