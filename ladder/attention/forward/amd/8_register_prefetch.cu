// attention forward, amd rung 8: prefetch in registers
// Before: rung 7 loads tiles, waits, multiplies, waits, and only then loads the next tiles.
// Change: a thread loads its share of the next tiles into registers before it multiplies the
//         present ones, and stores it to shared memory when all are done with these.
// Expect: loads from memory overlap with both products and the softmax. Shared memory stays as it
//         is, so that as many blocks share a compute unit; a second pair of tiles would halve them.
// Needs:  real in (float16, bfloat16); cdna >= 2 or rdna >= 3; HS <= 128; HS % vector == 0
// Define: HS = C // NH; WIDTH = ceil_div(HS, warp) * warp; WARPS = 4; TILE = 16 * WARPS;
//         SIDE = 16
// Launch: attention_forward<<<(B * NH, ceil_div(T, TILE)), WARPS * warp>>>
// Rounds: exp(score - largest), the factor of v
// After:  amd-7
// Left:   every wave reads every tile of k and v from shared memory for its 16 queries: 16 FLOPs
//         per byte, just what CDNA 3 needs. 32 queries would halve that, for twice the registers.

#include "fast_math.cuh"
#include "hip/matrix_core.cuh"

constexpr int STRIDE_K = WIDTH + VECTOR;  // padded: 8 rows of a tile begin in different banks
constexpr int STRIDE_V = TILE + VECTOR;
constexpr int PAIRS = TILE / 2;  // of neighbouring keys
constexpr int SHARE = TILE * WIDTH / (WARPS * WARP_SIZE * VECTOR);  // vectors of a tile per thread

struct alignas(RUN * sizeof(real)) Run { real at[RUN]; };  // one store
struct alignas(4) Pair { real low, high; };                // neighbouring keys

// The position of 16-byte piece p of a row in a tile of k, and of v.
__device__ __forceinline__ int place_k(int row, int p) { return row * STRIDE_K + p * VECTOR; }
__device__ __forceinline__ int place_v(int row, int p) { return row * STRIDE_V + p * VECTOR; }

// Loads this thread's share of TILE rows of one head, from row `first` on. Rows past T and channels
// past HS become zeros.
__device__ __forceinline__ void load_tile(Vec (&share)[SHARE],
                                          const real* head /* (T, HS), rows `step` apart */,
                                          int first, int T, int step) {
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
        int t = (s * WARPS * WARP_SIZE + threadIdx.x) * VECTOR;
        int row = first + t / WIDTH, i = t % WIDTH;
        share[s] = {};
        if (row < T && i < HS) share[s] = load_vec(head + (size_t)row * step + i);
    }
}

__device__ __forceinline__ void store_tile(real* tile /* (TILE, STRIDE_K) */,
                                           const Vec (&share)[SHARE]) {
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
        int t = (s * WARPS * WARP_SIZE + threadIdx.x) * VECTOR;
        store_vec(tile + place_k(t / WIDTH, t % WIDTH / VECTOR), share[s]);
    }
}

// The same, transposed: a thread pairs the channels of two neighbouring rows.
__device__ __forceinline__ void load_pairs(Vec (&share)[SHARE], const real* head, int first, int T,
                                           int step) {
#pragma unroll
    for (int s = 0; s < SHARE; s++) {
        int t = s / 2 * WARPS * WARP_SIZE + threadIdx.x;
        int row = first + t % PAIRS * 2 + s % 2, i = t / PAIRS * VECTOR;
        share[s] = {};
        if (row < T && i < HS) share[s] = load_vec(head + (size_t)row * step + i);
    }
}

__device__ __forceinline__ void store_transposed(real* tile /* (WIDTH, STRIDE_V) */,
                                                 const Vec (&share)[SHARE]) {
#pragma unroll
    for (int s = 0; s < SHARE; s += 2) {
        int t = s / 2 * WARPS * WARP_SIZE + threadIdx.x;
        real* to = tile + t / PAIRS * VECTOR * STRIDE_V + chain_order(t % PAIRS * 2);
#pragma unroll
        for (int j = 0; j < VECTOR; j++) {
            *reinterpret_cast<Pair*>(to + j * STRIDE_V) = {share[s][j], share[s + 1][j]};
        }
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE) attention_forward(
    real* __restrict__ out,        // (B, T, C)
    float* __restrict__ lse,       // (B, NH, T)  log-sum-exp of each query's scores
    const real* __restrict__ qkv,  // (B, T, 3, NH, HS)
    int B, int T, int C, int NH) {
    __shared__ alignas(16) real k[TILE * STRIDE_K];   // (TILE, STRIDE_K)
    __shared__ alignas(16) real v[WIDTH * STRIDE_V];  // (WIDTH, STRIDE_V)  transposed
    int b = blockIdx.x / NH, h = blockIdx.x % NH;
    int first = (gridDim.y - 1 - blockIdx.y) * TILE;  // blocks with most keys start first
    const real* head = qkv + (size_t)b * T * 3 * C + h * HS;  // (T, HS)  q; rows 3 * C apart

    // This wave's 16 queries, STEP channels in each fragment. They pass through k.
    Fragment q[WIDTH / STEP];
    Vec next_k[SHARE], next_v[SHARE];
    load_tile(next_k, head, first, T, 3 * C);
    store_tile(k, next_k);
    __syncthreads();  // the queries are complete before any wave reads them
#pragma unroll
    for (int i = 0; i < WIDTH / STEP; i++) q[i] = load_b<place_k>(k, warp_id() * 16, i * STEP);
    __syncthreads();  // all have read the queries before keys overwrite them

    int query = first + warp_id() * 16 + d_column();  // this lane's
    Accumulator sums[WIDTH / 16] = {};  // v.T @ p.T, 16 channels each
    float largest = -INFINITY, total = 0.0f;  // total: of this lane's keys only
    float scale = rsqrtf(HS) * LOG2_E;        // exp(score / sqrt(HS)) is 2^(score * scale)
    load_tile(next_k, head + C, 0, T, 3 * C);
    load_pairs(next_v, head + 2 * C, 0, T, 3 * C);
    for (int start = 0; start <= first; start += TILE) {  // later keys are in the future
        store_tile(k, next_k);
        store_transposed(v, next_v);
        __syncthreads();  // the tiles are complete before any wave reads them
        if (start < first) {
            load_tile(next_k, head + C, start + TILE, T, 3 * C);
            load_pairs(next_v, head + 2 * C, start + TILE, T, 3 * C);
        }

        Accumulator scores[TILE / 16] = {};  // k @ q.T, 16 keys each
#pragma unroll
        for (int n = 0; n < TILE / 16; n++) {
#pragma unroll
            for (int i = 0; i < WIDTH / STEP; i++) {
                multiply_add(scores[n], load_a<place_k>(k, n * 16, i * STEP), q[i]);
            }
        }
        float before = largest;
#pragma unroll
        for (int n = 0; n < TILE / 16; n++) {
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                if (start + n * 16 + d_row(e) > query) scores[n][e] = -INFINITY;  // in the future
                largest = fmaxf(largest, scores[n][e]);
            }
        }
        for (int lanes = 16; lanes < WARP_SIZE; lanes *= 2) {  // that have the same query
            largest = fmaxf(largest, shuffle_xor(largest, lanes));
        }
        float rescale = fast_exp2((before - largest) * scale);  // 0 at the first tile
        total *= rescale;
#pragma unroll
        for (int c = 0; c < WIDTH / 16; c++) {
            for (int e = 0; e < EACH; e++) sums[c][e] *= rescale;
        }
#pragma unroll
        for (int n = 0; n < TILE / 16; n++) {
#pragma unroll
            for (int e = 0; e < EACH; e++) {
                scores[n][e] = fast_exp2(scores[n][e] * scale - largest * scale);
                total += scores[n][e];
            }
        }

#pragma unroll
        for (int n = 0; n < TILE / STEP; n++) {
            Fragment p = chain(scores + n * (STEP / 16));
#pragma unroll
            for (int c = 0; c < WIDTH / 16; c++) {
                multiply_add(sums[c], load_a<place_v>(v, c * 16, n * STEP), p);
            }
        }
        __syncthreads();  // all have read the tiles before the next ones overwrite them
    }

    for (int lanes = 16; lanes < WARP_SIZE; lanes *= 2) total += shuffle_xor(total, lanes);
    if (query >= T) return;
    real* y = out + ((size_t)b * T + query) * C + h * HS;  // (HS)
    float inverse = 1.0f / total;
#pragma unroll
    for (int c = 0; c < WIDTH / 16; c++) {
#pragma unroll
        for (int e = 0; e < EACH; e += RUN) {
            if (c * 16 + d_row(e) >= HS) break;
            Run run;
            for (int j = 0; j < RUN; j++) run.at[j] = to_real(sums[c][e + j] * inverse);
            *reinterpret_cast<Run*>(y + c * 16 + d_row(e)) = run;
        }
    }
    if (lane_id() < 16) lse[(size_t)blockIdx.x * T + query] = largest * rsqrtf(HS) + logf(total);
}
