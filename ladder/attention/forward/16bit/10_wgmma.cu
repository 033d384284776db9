// attention forward, 16bit rung 10: wgmma (warpgroup matrix multiply)
// Before: in rung 9, a warp reads all of k and v from shared memory into registers (ldmatrix) for
//         its 32 queries.
// Change: wgmma (warpgroup matrix multiply). Four warps, a warpgroup, have 64 queries together. The
//         tensor cores read tiles from shared memory themselves: k as it lies (K-major), v
//         transposed (MN-major). The weights go from one product to the next in registers as
//         before. Two warpgroups share the tiles.
// Expect: half of the bytes from shared memory, and no instructions to read them. Only the softmax
//         is left for the warps.
// Needs:  real in (float16, bfloat16); sm == 90; warp == 32; HS <= 64; HS % vector == 0
// Define: HS = C // NH; QUERIES = 128; SHARED = (QUERIES + 4 * 64) * 64 * sizeof_real
// Launch: attention_forward<<<(B * NH, ceil_div(T, QUERIES)), 2 * QUERIES, SHARED>>>
// Rounds: exp(score - largest), the factor of v
// After:  16bit-9
// Rewrite: warpgroups replace warps, with another layout of the tiles.
// Left:   every lane computes the descriptors of its warp's products -> rung 11. Also, within a
//         warpgroup, the tensor cores wait for the exponentials.

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
    wgmma_m64k16<STEP, false, 0, false>(d, a, tile);
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

// Stores d (64, 64) * factor as rows of one head. The results pass through `tile`, which is free
// now, so that 8 lanes store the 128 bytes of a row (coalesced). `row` is the warpgroup's first
// row; a lane has two rows, each with its factor in `factors`.
__device__ __forceinline__ void store_rows(real* head, const float (&d)[32],
                                           const float (&factors)[2], real* tile, int row, int T,
                                           int step) {
    int lane = lane_id(), y = warp_id() % 4 * 16;  // y: the warp's first row of the tile
#pragma unroll
    for (int i = 0; i < 16; i++) {
        int r = i % 2, p = i / 2;
        unsigned* to = reinterpret_cast<unsigned*>(tile + place(y + lane / 4 + r * 8, p));
        to[lane % 4] = pack(d[4 * p + 2 * r] * factors[r], d[4 * p + 2 * r + 1] * factors[r]);
    }
    __syncwarp();  // the rows are complete before other lanes read them
    for (int i = lane; i < 16 * 8; i += WARP_SIZE) {
        int r = y + i / 8, p = i % 8;
        if (row + r < T && p * VECTOR < HS) {
            store_vec(head + (size_t)(row + r) * step + p * VECTOR, load_vec(tile + place(r, p)));
        }
    }
}

extern "C" __global__ void __launch_bounds__(2 * QUERIES, 2) attention_forward(
    real* __restrict__ out,        // (B, T, C)
    float* __restrict__ lse,       // (B, NH, T)  log-sum-exp of each query's scores
    const real* __restrict__ qkv,  // (B, T, 3, NH, HS)
    int B, int T, int C, int NH) {
    extern __shared__ __align__(1024) Vec shared[];
    real* q = shared->at;         // (QUERIES, 64)
    real* k = q + QUERIES * 64;   // (2, STEP, 64)  double buffer
    real* v = k + 2 * TILE;       // (2, STEP, 64)  double buffer
    int lane = lane_id(), t = lane % 4;
    int b = blockIdx.x / NH, h = blockIdx.x % NH;
    int first = (gridDim.y - 1 - blockIdx.y) * QUERIES;  // blocks with most keys start first
    int own = warp_id() / 4 * 64;  // the warpgroup's first query in the block
    const real* head = qkv + (size_t)b * T * 3 * C + h * HS;  // (T, HS)  q; rows 3 * C apart
    auto copy_keys = [&](int start, int to) {
        copy_tiles<1, 2 * QUERIES>(k + to * TILE, head + C, start, T, 3 * C);
        copy_tiles<1, 2 * QUERIES>(v + to * TILE, head + 2 * C, start, T, 3 * C);
        cp_async_commit();
    };
    copy_tiles<QUERIES / 64, 2 * QUERIES>(q, head, first, T, 3 * C);
    copy_keys(0, 0);

    // This lane has queries `query` and `query` + 8, at [0] and [1] of the arrays below.
    int query = first + warp_id() * 16 + lane / 4;
    float sums[32] = {};  // (64 queries, 64 channels)
    float largest[2] = {-INFINITY, -INFINITY}, total[2] = {};  // total: of this lane's keys only
    float scale = rsqrtf(HS) * LOG2_E;  // exp(score / sqrt(HS)) is 2^(score * scale)
    int end = min(first + QUERIES, T);
    for (int start = 0, turn = 0; start < end; start += STEP, turn ^= 1) {
        cp_async_wait<0>();
        tma_store_fence();  // makes the writes visible to wgmma (async proxy)
        __syncthreads();  // copies arrive before they are read; the pair filled next has been read
        if (start + STEP < end) copy_keys(start + STEP, turn ^ 1);  // later keys are in the future
        if (start > first + own) continue;  // all keys are in this warpgroup's future

        float scores[STEP / 2];  // (64 queries, STEP keys)
        wgmma_fence();
        multiply_transposed(scores, q + own * 64, k + turn * TILE);
        wgmma_wait<0>(scores);
        if (start == first + own) {  // the tile on the diagonal: some keys are in the future
#pragma unroll
            for (int i = 0; i < STEP / 2; i++) {
                int key = start + i / 4 * 8 + 2 * t + i % 2;
                if (key > query + i / 2 % 2 * 8) scores[i] = -INFINITY;
            }
        }

#pragma unroll
        for (int r = 0; r < 2; r++) {
            float before = largest[r];
#pragma unroll
            for (int i = 2 * r; i < STEP / 2; i += 4) {
                largest[r] = fmaxf(largest[r], fmaxf(scores[i], scores[i + 1]));
            }
            largest[r] = fmaxf(largest[r], shuffle_xor(largest[r], 1));
            largest[r] = fmaxf(largest[r], shuffle_xor(largest[r], 2));
            float rescale = fast_exp2((before - largest[r]) * scale);  // 0 at the first tile
            total[r] *= rescale;
#pragma unroll
            for (int i = 2 * r; i < 32; i += 4) {
                sums[i] *= rescale;
                sums[i + 1] *= rescale;
            }
#pragma unroll
            for (int i = 2 * r; i < STEP / 2; i += 4) {
                for (int j = i; j < i + 2; j++) {
                    scores[j] = fast_exp2(scores[j] * scale - largest[r] * scale);
                    total[r] += scores[j];
                }
            }
        }

        add(sums, scores, v + turn * TILE);
        wgmma_wait<0>(sums);
    }
    float inverse[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        total[r] += shuffle_xor(total[r], 1);
        total[r] += shuffle_xor(total[r], 2);
        inverse[r] = 1.0f / total[r];
        if (t == 0 && query + r * 8 < T) {
            lse[(size_t)blockIdx.x * T + query + r * 8] =
                largest[r] * rsqrtf(HS) + logf(total[r]);
        }
    }
    __syncthreads();  // all warps have read q before results overwrite it
    real* head_out = out + (size_t)b * T * C + h * HS;
    store_rows(head_out, sums, inverse, q + own * 64, first + own, T, C);
}
