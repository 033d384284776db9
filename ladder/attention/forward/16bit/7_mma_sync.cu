// attention forward, 16bit rung 7: FlashAttention-2 with mma.sync and ldmatrix
// Before: rung 6 computes with float32 multiply-adds, one product per lane and instruction.
// Change: FlashAttention-2 (Dao 2023) on tensor cores, units that multiply small matrices. Each
//         warp has 16 queries of its own, and multiplies with mma.sync. Its q, scores and
//         accumulators stay in registers. The lanes hold the scores in the layout that a factor of
//         the second product needs, so these are only rounded to 16 bits.
// Expect: an order of magnitude faster. Four neighbouring lanes reduce a row, without a barrier.
//         Every warp reads every tile of k and v from shared memory for its 16 queries, which takes
//         more clocks than the products.
// Needs:  real in (float16, bfloat16); sm >= 80; warp == 32; HS <= 128; HS % vector == 0
// Define: HS = C // NH; WIDTH = ceil_div(HS, 16) * 16; WARPS = 4; TILE = 16 * WARPS
// Launch: attention_forward<<<(B * NH, ceil_div(T, TILE)), WARPS * warp>>>
// Rounds: exp(score - largest), the factor of v
// After:  6
// Rewrite: the algorithm is the same, but warps, not threads, own the queries.
// Left:   the tensor cores starve for data while the next tiles are loaded -> rung 8.

#include "fast_math.cuh"
#include "mma_real.cuh"

constexpr int STRIDE = WIDTH + 8;  // padded: 8 rows of a tile begin in different banks

// Copies TILE rows of one head, from row `first` on, to shared memory. Rows past T and channels
// past HS become zeros.
__device__ __forceinline__ void load_tile(real* tile /* (TILE, STRIDE) */,
                                          const real* head /* (T, HS), rows `step` apart */,
                                          int first, int T, int step) {
#pragma unroll
    for (int t = threadIdx.x * VECTOR; t < TILE * WIDTH; t += WARPS * WARP_SIZE * VECTOR) {
        int row = t / WIDTH, i = t % WIDTH;
        Vec v = {};
        if (first + row < T && i < HS) v = load_vec(head + (size_t)(first + row) * step + i);
        store_vec(tile + row * STRIDE + i, v);
    }
}

// d (16, TILE) += a (16, WIDTH) @ tile.T. Each D matrix (16 x 8) covers 8 rows of the tile.
__device__ __forceinline__ void add_transposed(float (&d)[TILE / 8][4],
                                               const unsigned (&a)[WIDTH / 16][4],
                                               const real* tile /* (TILE, STRIDE) */) {
    int lane = lane_id();
    const real* corner = tile + (lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 8;
#pragma unroll
    for (int i = 0; i < WIDTH / 16; i++) {
#pragma unroll
        for (int n = 0; n < TILE / 16; n++) {  // 16 rows: two B matrices per ldmatrix
            unsigned b[4];
            ldmatrix_x4(b, corner + n * 16 * STRIDE + i * 16);
            mma_m16n8k16(d[2 * n], a[i], {b[0], b[1]});
            mma_m16n8k16(d[2 * n + 1], a[i], {b[2], b[3]});
        }
    }
}

// d (16, WIDTH) += a (16, TILE) @ tile, with a rounded to real. Each D matrix (16 x 8) covers 8
// channels.
__device__ __forceinline__ void add(float (&d)[WIDTH / 8][4], const float (&a)[TILE / 8][4],
                                    const real* tile /* (TILE, STRIDE) */) {
    int lane = lane_id();
    const real* corner = tile + lane % 16 * STRIDE + lane / 16 * 8;
#pragma unroll
    for (int n = 0; n < TILE / 16; n++) {  // two neighbouring D matrices form one A matrix
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

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE) attention_forward(
    real* __restrict__ out,        // (B, T, C)
    float* __restrict__ lse,       // (B, NH, T)  log-sum-exp of each query's scores
    const real* __restrict__ qkv,  // (B, T, 3, NH, HS)
    int B, int T, int C, int NH) {
    __shared__ alignas(16) real k[TILE * STRIDE];  // (TILE, STRIDE)
    __shared__ alignas(16) real v[TILE * STRIDE];  // (TILE, STRIDE)
    int lane = lane_id(), g = lane / 4, t = lane % 4;
    int b = blockIdx.x / NH, h = blockIdx.x % NH;
    int first = (gridDim.y - 1 - blockIdx.y) * TILE;  // blocks with most keys start first
    const real* head = qkv + (size_t)b * T * 3 * C + h * HS;  // (T, HS)  q; rows 3 * C apart

    // This warp's 16 queries, as A matrices of 16 channels each. They pass through k.
    unsigned q[WIDTH / 16][4];
    load_tile(k, head, first, T, 3 * C);
    __syncthreads();  // the queries are complete before any warp reads them
#pragma unroll
    for (int i = 0; i < WIDTH / 16; i++) {
        ldmatrix_x4(q[i], k + (warp_id() * 16 + lane % 16) * STRIDE + i * 16 + lane / 16 * 8);
    }
    __syncthreads();  // all have read the queries before keys overwrite them

    // This lane has queries `query` and `query` + 8, at [0] and [1] of the arrays below.
    int query = first + warp_id() * 16 + g;
    float sums[WIDTH / 8][4] = {};  // D matrices of p @ v, 8 channels each
    float largest[2] = {-INFINITY, -INFINITY}, total[2] = {};  // total: of this lane's keys only
    float scale = rsqrtf(HS) * LOG2_E;  // exp(score / sqrt(HS)) is 2^(score * scale)
    for (int start = 0; start <= first; start += TILE) {  // later keys are in the future
        load_tile(k, head + C, start, T, 3 * C);
        load_tile(v, head + 2 * C, start, T, 3 * C);
        __syncthreads();  // the tiles are complete before any warp reads them

        float scores[TILE / 8][4] = {};  // D matrices of q @ k.T, 8 keys each
        add_transposed(scores, q, k);
        if (start == first) {  // the tile on the diagonal: some keys are in the future
#pragma unroll
            for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    int key = start + n * 8 + 2 * t + j % 2;
                    if (key > query + j / 2 * 8) scores[n][j] = -INFINITY;
                }
            }
        }

#pragma unroll
        for (int r = 0; r < 2; r++) {
            float before = largest[r];
#pragma unroll
            for (int n = 0; n < TILE / 8; n++) {
                largest[r] = fmaxf(largest[r], fmaxf(scores[n][2 * r], scores[n][2 * r + 1]));
            }
            largest[r] = fmaxf(largest[r], shuffle_xor(largest[r], 1));
            largest[r] = fmaxf(largest[r], shuffle_xor(largest[r], 2));
            float rescale = fast_exp2((before - largest[r]) * scale);  // 0 at the first tile
            total[r] *= rescale;
#pragma unroll
            for (int i = 0; i < WIDTH / 8; i++) {
                sums[i][2 * r] *= rescale;
                sums[i][2 * r + 1] *= rescale;
            }
#pragma unroll
            for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
                for (int j = 2 * r; j < 2 * r + 2; j++) {
                    scores[n][j] = fast_exp2(scores[n][j] * scale - largest[r] * scale);
                    total[r] += scores[n][j];
                }
            }
        }

        add(sums, scores, v);
        __syncthreads();  // all have read the tiles before the next ones overwrite them
    }

#pragma unroll
    for (int r = 0; r < 2; r++) {
        total[r] += shuffle_xor(total[r], 1);
        total[r] += shuffle_xor(total[r], 2);
        if (query + r * 8 >= T) continue;  // its shuffles are done; its four lanes skip together
        real* y = out + ((size_t)b * T + query + r * 8) * C + h * HS;  // (HS)
        float inverse = 1.0f / total[r];
#pragma unroll
        for (int i = 0; i < WIDTH / 8; i++) {
            if (i * 8 >= HS) break;
            *reinterpret_cast<unsigned*>(y + i * 8 + 2 * t) =
                pack(sums[i][2 * r] * inverse, sums[i][2 * r + 1] * inverse);
        }
        if (t == 0) {
            lse[(size_t)blockIdx.x * T + query + r * 8] =
                largest[r] * rsqrtf(HS) + logf(total[r]);
        }
    }
}
