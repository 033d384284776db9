// attention forward, 16bit rung 9: larger warp tile (32 queries)
// Before: rung 8 reads 512 bytes of k or v from shared memory for every two products.
// Change: a warp has two rows of matrices, 32 queries: what it reads serves four products.
// Expect: half of the reads from shared memory, which took longer than the products. It costs
//         registers: only two blocks fit on an SM (streaming multiprocessor), so less waiting is
//         hidden.
// Needs:  real in (float16, bfloat16); sm >= 80; warp == 32; HS <= 64; HS % vector == 0
// Define: HS = C // NH; WIDTH = ceil_div(HS, 16) * 16; WARPS = 4; TILE = 64; PARTS = 2;
//         QUERIES = 16 * PARTS * WARPS; SHARED = 4 * TILE * (WIDTH + 8) * sizeof_real
// Launch: attention_forward<<<(B * NH, ceil_div(T, QUERIES)), WARPS * warp, SHARED>>>
// Rounds: exp(score - largest), the factor of v
// After:  16bit-8
// Rewrite: every array of a thread gets a second row of matrices, and with it every loop over them
//         changes.
// Left:   the tensor cores wait for the softmax. Hopper's own matrix instruction, wgmma, reads its
//         factors from shared memory itself, and is faster than mma.sync -> rung 10.

#include "async.cuh"
#include "fast_math.cuh"
#include "mma_real.cuh"

constexpr int STRIDE = WIDTH + 8;  // padded: 8 rows of a tile begin in different banks

// Starts to copy TILE rows of one head, from row `first` on, to shared memory. Rows past T and
// channels past HS become zeros.
__device__ __forceinline__ void copy_tile(real* tile /* (TILE, STRIDE) */,
                                          const real* head /* (T, HS), rows `step` apart */,
                                          int first, int T, int step) {
#pragma unroll
    for (int t = threadIdx.x * VECTOR; t < TILE * WIDTH; t += WARPS * WARP_SIZE * VECTOR) {
        int row = t / WIDTH, i = t % WIDTH;
        bool inside = first + row < T && i < HS;
        const real* from = inside ? head + (size_t)(first + row) * step + i : head;
        cp_async_16_or_zero(tile + row * STRIDE + i, from, inside);
    }
}

// d (16 * PARTS, TILE) += a (16 * PARTS, WIDTH) @ tile.T. Each D matrix (16 x 8) covers 8 rows of
// the tile.
__device__ __forceinline__ void add_transposed(float (&d)[PARTS][TILE / 8][4],
                                               const unsigned (&a)[PARTS][WIDTH / 16][4],
                                               const real* tile /* (TILE, STRIDE) */) {
    int lane = lane_id();
    const real* corner = tile + (lane / 16 * 8 + lane % 8) * STRIDE + lane / 8 % 2 * 8;
#pragma unroll
    for (int i = 0; i < WIDTH / 16; i++) {
#pragma unroll
        for (int n = 0; n < TILE / 16; n++) {  // 16 rows: two B matrices per ldmatrix
            unsigned b[4];
            ldmatrix_x4(b, corner + n * 16 * STRIDE + i * 16);
#pragma unroll
            for (int m = 0; m < PARTS; m++) {
                mma_m16n8k16(d[m][2 * n], a[m][i], {b[0], b[1]});
                mma_m16n8k16(d[m][2 * n + 1], a[m][i], {b[2], b[3]});
            }
        }
    }
}

// d (16 * PARTS, WIDTH) += a (16 * PARTS, TILE) @ tile, with a rounded to real. Each D matrix (16 x
// 8) covers 8 channels.
__device__ __forceinline__ void add(float (&d)[PARTS][WIDTH / 8][4],
                                    const float (&a)[PARTS][TILE / 8][4],
                                    const real* tile /* (TILE, STRIDE) */) {
    int lane = lane_id();
    const real* corner = tile + lane % 16 * STRIDE + lane / 16 * 8;
#pragma unroll
    for (int n = 0; n < TILE / 16; n++) {  // two neighbouring D matrices form one A matrix
        unsigned rounded[PARTS][4];
#pragma unroll
        for (int m = 0; m < PARTS; m++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float* pair = &a[m][2 * n + j / 2][j % 2 * 2];
                rounded[m][j] = pack(pair[0], pair[1]);
            }
        }
#pragma unroll
        for (int i = 0; i < WIDTH / 16; i++) {  // 16 channels: two B matrices per ldmatrix
            unsigned b[4];
            ldmatrix_x4_trans(b, corner + n * 16 * STRIDE + i * 16);
#pragma unroll
            for (int m = 0; m < PARTS; m++) {
                mma_m16n8k16(d[m][2 * i], rounded[m], {b[0], b[1]});
                mma_m16n8k16(d[m][2 * i + 1], rounded[m], {b[2], b[3]});
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE) attention_forward(
    real* __restrict__ out,        // (B, T, C)
    float* __restrict__ lse,       // (B, NH, T)  log-sum-exp of each query's scores
    const real* __restrict__ qkv,  // (B, T, 3, NH, HS)
    int B, int T, int C, int NH) {
    extern __shared__ Vec shared[];
    real* k = shared->at;              // (2, TILE, STRIDE)  double buffer
    real* v = k + 2 * TILE * STRIDE;   // (2, TILE, STRIDE)  double buffer
    int lane = lane_id(), g = lane / 4, t = lane % 4;
    int b = blockIdx.x / NH, h = blockIdx.x % NH;
    int first = (gridDim.y - 1 - blockIdx.y) * QUERIES;  // blocks with most keys start first
    const real* head = qkv + (size_t)b * T * 3 * C + h * HS;  // (T, HS)  q; rows 3 * C apart

    // This warp's queries, as A matrices of 16 channels each. They pass through both tiles of k.
    unsigned q[PARTS][WIDTH / 16][4];
    copy_tile(k, head, first, T, 3 * C);
    copy_tile(k + TILE * STRIDE, head, first + TILE, T, 3 * C);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();  // the queries are complete before any warp reads them
#pragma unroll
    for (int m = 0; m < PARTS; m++) {
#pragma unroll
        for (int i = 0; i < WIDTH / 16; i++) {
            int row = (warp_id() * PARTS + m) * 16 + lane % 16;
            ldmatrix_x4(q[m][i], k + row * STRIDE + i * 16 + lane / 16 * 8);
        }
    }
    __syncthreads();  // all have read the queries before keys overwrite them
    copy_tile(k, head + C, 0, T, 3 * C);
    copy_tile(v, head + 2 * C, 0, T, 3 * C);
    cp_async_commit();

    // In part m, this lane has queries `query` + 16 * m and `query` + 16 * m + 8, at [m][0] and
    // [m][1] of the arrays below.
    int query = first + warp_id() * PARTS * 16 + g;
    int last = first + (warp_id() + 1) * PARTS * 16 - 1;  // the warp's last query
    float sums[PARTS][WIDTH / 8][4] = {};  // D matrices of p @ v, 8 channels each
    float largest[PARTS][2], total[PARTS][2] = {};  // total: of this lane's keys only
    for (int m = 0; m < PARTS; m++) {
        largest[m][0] = largest[m][1] = -INFINITY;
    }
    float scale = rsqrtf(HS) * LOG2_E;  // exp(score / sqrt(HS)) is 2^(score * scale)
    int end = min(first + QUERIES, T);
    for (int start = 0, turn = 0; start < end; start += TILE, turn ^= 1) {
        cp_async_wait<0>();
        __syncthreads();  // copies arrive before they are read; the pair filled next has been read
        if (start + TILE < end) {  // later keys are in the future
            int next = (turn ^ 1) * TILE * STRIDE;
            copy_tile(k + next, head + C, start + TILE, T, 3 * C);
            copy_tile(v + next, head + 2 * C, start + TILE, T, 3 * C);
            cp_async_commit();
        }
        if (start > last) continue;  // all keys of the tile are in the warp's future

        float scores[PARTS][TILE / 8][4] = {};  // D matrices of q @ k.T, 8 keys each
        add_transposed(scores, q, k + turn * TILE * STRIDE);
#pragma unroll
        for (int m = 0; m < PARTS; m++) {
            if (start + TILE > last - PARTS * 16 + m * 16) {  // some keys are in the future
#pragma unroll
                for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        int key = start + n * 8 + 2 * t + j % 2;
                        if (key > query + m * 16 + j / 2 * 8) scores[m][n][j] = -INFINITY;
                    }
                }
            }
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float before = largest[m][r];
#pragma unroll
                for (int n = 0; n < TILE / 8; n++) {
                    float larger = fmaxf(scores[m][n][2 * r], scores[m][n][2 * r + 1]);
                    largest[m][r] = fmaxf(largest[m][r], larger);
                }
                largest[m][r] = fmaxf(largest[m][r], shuffle_xor(largest[m][r], 1));
                largest[m][r] = fmaxf(largest[m][r], shuffle_xor(largest[m][r], 2));
                float rescale = fast_exp2((before - largest[m][r]) * scale);  // 0 at the first tile
                total[m][r] *= rescale;
#pragma unroll
                for (int i = 0; i < WIDTH / 8; i++) {
                    sums[m][i][2 * r] *= rescale;
                    sums[m][i][2 * r + 1] *= rescale;
                }
#pragma unroll
                for (int n = 0; n < TILE / 8; n++) {
#pragma unroll
                    for (int j = 2 * r; j < 2 * r + 2; j++) {
                        float& p = scores[m][n][j];
                        p = fast_exp2(p * scale - largest[m][r] * scale);
                        total[m][r] += p;
                    }
                }
            }
        }
        add(sums, scores, v + turn * TILE * STRIDE);
    }

#pragma unroll
    for (int m = 0; m < PARTS; m++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            total[m][r] += shuffle_xor(total[m][r], 1);
            total[m][r] += shuffle_xor(total[m][r], 2);
            int row = query + m * 16 + r * 8;
            if (row >= T) continue;  // its shuffles are done; its four lanes skip together
            real* y = out + ((size_t)b * T + row) * C + h * HS;  // (HS)
            float inverse = 1.0f / total[m][r];
#pragma unroll
            for (int i = 0; i < WIDTH / 8; i++) {
                if (i * 8 >= HS) break;
                *reinterpret_cast<unsigned*>(y + i * 8 + 2 * t) =
                    pack(sums[m][i][2 * r] * inverse, sums[m][i][2 * r + 1] * inverse);
            }
            if (t == 0) {
                lse[(size_t)blockIdx.x * T + row] =
                    largest[m][r] * rsqrtf(HS) + logf(total[m][r]);
            }
        }
    }
}
