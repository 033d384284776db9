// attention forward, amd rung 7: FlashAttention-2 on matrix cores
// Before: rung 6 computes with float32 multiply-adds, one or two of a lane per instruction.
// Change: FlashAttention-2 (Dao 2023) on AMD's matrix cores (MFMA, WMMA). Each wave has 16 queries
//         of its own. It computes both products transposed: k @ q.T, then v.T @ p.T. So each lane
//         has one query, whose scores, largest score and accumulators stay in its registers; and
//         the lanes hold the scores as the second product needs them, up to the order of the keys.
// Expect: up to eight times the multiply-adds per clock on an MI300X. Two shuffles reduce a row,
//         one on RDNA. v is transposed on its way to shared memory, with its keys in that order.
// Needs:  real in (float16, bfloat16); cdna >= 2 or rdna >= 3; HS <= 128; HS % vector == 0
// Define: HS = C // NH; WIDTH = ceil_div(HS, warp) * warp; WARPS = 4; TILE = 16 * WARPS;
//         SIDE = 16
// Launch: attention_forward<<<(B * NH, ceil_div(T, TILE)), WARPS * warp>>>
// Rounds: exp(score - largest), the factor of v
// After:  6
// Rewrite: the algorithm is the same, but waves, not threads, own the queries.
// Left:   the matrix cores starve for data while the next tiles are loaded -> rung 8.

#include "fast_math.cuh"
#include "hip/matrix_core.cuh"

constexpr int STRIDE_K = WIDTH + VECTOR;  // padded: 8 rows of a tile begin in different banks
constexpr int STRIDE_V = TILE + VECTOR;
constexpr int PAIRS = TILE / 2;  // of neighbouring keys

struct alignas(RUN * sizeof(real)) Run { real at[RUN]; };  // one store
struct alignas(4) Pair { real low, high; };                // neighbouring keys

// The position of 16-byte piece p of a row in a tile of k, and of v.
__device__ __forceinline__ int place_k(int row, int p) { return row * STRIDE_K + p * VECTOR; }
__device__ __forceinline__ int place_v(int row, int p) { return row * STRIDE_V + p * VECTOR; }

// Copies TILE rows of one head, from row `first` on, to shared memory. Rows past T and channels
// past HS become zeros.
__device__ __forceinline__ void load_tile(real* tile /* (TILE, STRIDE_K) */,
                                          const real* head /* (T, HS), rows `step` apart */,
                                          int first, int T, int step) {
#pragma unroll
    for (int t = threadIdx.x * VECTOR; t < TILE * WIDTH; t += WARPS * WARP_SIZE * VECTOR) {
        int row = t / WIDTH, i = t % WIDTH;
        Vec v = {};
        if (first + row < T && i < HS) v = load_vec(head + (size_t)(first + row) * step + i);
        store_vec(tile + place_k(row, i / VECTOR), v);
    }
}

// The same, transposed: a thread pairs the channels of two neighbouring rows.
__device__ __forceinline__ void load_transposed(real* tile /* (WIDTH, STRIDE_V) */,
                                                const real* head, int first, int T, int step) {
#pragma unroll
    for (int t = threadIdx.x; t < PAIRS * WIDTH / VECTOR; t += WARPS * WARP_SIZE) {
        int row = t % PAIRS * 2, i = t / PAIRS * VECTOR;
        const real* from = head + (size_t)(first + row) * step + i;
        Vec v[2] = {};
        if (first + row < T && i < HS) v[0] = load_vec(from);
        if (first + row + 1 < T && i < HS) v[1] = load_vec(from + step);
        for (int j = 0; j < VECTOR; j++) {
            real* to = tile + (i + j) * STRIDE_V + chain_order(row);
            *reinterpret_cast<Pair*>(to) = {v[0][j], v[1][j]};
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
    load_tile(k, head, first, T, 3 * C);
    __syncthreads();  // the queries are complete before any wave reads them
#pragma unroll
    for (int i = 0; i < WIDTH / STEP; i++) q[i] = load_b<place_k>(k, warp_id() * 16, i * STEP);
    __syncthreads();  // all have read the queries before keys overwrite them

    int query = first + warp_id() * 16 + d_column();  // this lane's
    Accumulator sums[WIDTH / 16] = {};  // v.T @ p.T, 16 channels each
    float largest = -INFINITY, total = 0.0f;  // total: of this lane's keys only
    float scale = rsqrtf(HS) * LOG2_E;        // exp(score / sqrt(HS)) is 2^(score * scale)
    for (int start = 0; start <= first; start += TILE) {  // later keys are in the future
        load_tile(k, head + C, start, T, 3 * C);
        load_transposed(v, head + 2 * C, start, T, 3 * C);
        __syncthreads();  // the tiles are complete before any wave reads them

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
