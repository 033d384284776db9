// attention_dropout backward, 16bit rung 5: a block has a whole head
// Before: rung 4 has two kernels, and each computes all scores, dprobs and random bytes: seven
//         products for a pair of tiles where five are enough.
// Change: a sequence of at most 256 tokens fits in shared memory, so one block computes a whole
//         head. Warpgroup i has the tile of queries i, and adds up its dq. It gives probs and
//         dscores, through shared memory, to warpgroups 0 and 1, which add up dk and dv. Blocks
//         are persistent: TMA copies a tile of the next head as soon as its place is free.
// Expect: five products, half the random bytes, half the reads: the time of the bytes that must
//         move, as long as the copies stay ahead.
// Needs:  real in (float16, bfloat16); sm == 90; warp == 32; HS <= 64; HS % vector == 0; T <= 256
// Define: HS = C // NH; STEP = 64; TILES = ceil_div(T, STEP); HEADS = B * NH;
//         WARPGROUPS = max(TILES, 2); SHARED = 7 * TILES * STEP * 64 * sizeof_real
// Launch: attention_dropout_backward<<<min(HEADS, multiprocessors), WARPGROUPS * 128, SHARED>>>
// Tiles:  dout[STEP, 64]; qkv[STEP, 64]; out[STEP, 64]
// Rounds: probs and dscores, factors of the gradients
// After:  16bit-4
// Rewrite: one kernel that keeps a head in shared memory takes the place of two that stream it.
// Left:   one block on an SM: while warpgroups wait for each other, little else can go on.

#include "attention_mask.cuh"
#include "fast_math.cuh"
#include "mma_real.cuh"
#include "wgmma_real.cuh"

constexpr int TILE = STEP * 64;  // elements of a tile; each row has 64 channels
constexpr int ACROSS = TILE * sizeof(real);  // selects MN-major; any stride will do for a lone tile

// Swizzle: the position of 16-byte piece p of a row in a tile, as wgmma expects it.
__device__ __forceinline__ int place(int row, int p) {
    return row * 64 + (p ^ row % 8) * VECTOR;
}

// d (64, 64) = a @ tile.T
__device__ __forceinline__ void multiply_transposed(float (&d)[32], const real* a,
                                                    const real* tile) {
    wgmma_m64k16<64, false, 0, false>(d, a, tile);  // overwrites d
#pragma unroll
    for (int k = 16; k < 64; k += 16) {
        wgmma_m64k16<64>(d, a + k, tile + k);
    }
    wgmma_commit();
}

// rounded = a (64, 64) in 16 bits: one product's D layout is the next one's A layout
__device__ __forceinline__ void round_to(unsigned (&rounded)[4][4], const float (&a)[32]) {
#pragma unroll
    for (int i = 0; i < 16; i++) {
        rounded[i / 4][i % 4] = pack(a[2 * i], a[2 * i + 1]);
    }
}

// Stores a lane's part of a tile (64, 64); `y` is the first row of its warp.
__device__ __forceinline__ void store_tile(real* tile, const unsigned (&rounded)[4][4], int y) {
    int lane = lane_id();
#pragma unroll
    for (int i = 0; i < 16; i++) {
        unsigned* to = reinterpret_cast<unsigned*>(tile + place(y + lane / 4 + i % 2 * 8, i / 2));
        to[lane % 4] = rounded[i / 4][i % 4];
    }
}

// Stores d (64, 64) * factor as rows of one head, from `row` on. The results pass through `tile`,
// which is free now, so that 8 lanes store the 128 bytes of a row (coalesced).
__device__ __forceinline__ void store_rows(real* head, float (&d)[32], float factor, real* tile,
                                           int row, int T, int step) {
    int lane = lane_id(), y = warp_id() % 4 * 16;  // y: the warp's first row of the tile
#pragma unroll
    for (int i = 0; i < 32; i++) {
        d[i] *= factor;
    }
    unsigned rounded[4][4];
    round_to(rounded, d);
    store_tile(tile, rounded, y);
    __syncwarp();  // the rows are complete before other lanes read them
    for (int i = lane; i < 16 * 8; i += WARP_SIZE) {
        int r = y + i / 8, p = i % 8;
        if (row + r < T && p * VECTOR < HS) {  // as uint4: of a Vec the compiler makes four stores
            uint4* to = reinterpret_cast<uint4*>(head + (size_t)(row + r) * step + p * VECTOR);
            *to = *reinterpret_cast<const uint4*>(tile + place(r, p));
        }
    }
}

// Clears the channels past HS of a warpgroup's own tiles, into which TMA copied channels of another
// head. The tiles that these are multiplied with then need not be 0 there, only finite.
__device__ __forceinline__ void clear_channels(real* q, real* dy, int group) {
    for (int i = threadIdx.x % 128; i < STEP * 8; i += 128) {
        if (i % 8 * VECTOR < HS) continue;
        store_vec(q + place(i / 8, i % 8), {});
        store_vec(dy + place(i / 8, i % 8), {});
    }
    tma_store_fence();  // makes the writes visible to wgmma (async proxy)
    named_barrier(1 + group, 128);  // all zeros are written before any warp multiplies them
}

// The sum of dy * y over the channels of a row, which four lanes compute together.
__device__ __forceinline__ float multiply_rows(const real* dy, const real* y, int row) {
    float sum = 0.0f;
    for (int i = lane_id() % 4; i < 8; i += 4) {
        Vec a = load_vec(dy + place(row, i)), b = load_vec(y + place(row, i));
        for (int c = 0; c < VECTOR; c++) {
            sum += to_float(a[c]) * to_float(b[c]);
        }
    }
    sum += shuffle_xor(sum, 1);
    return sum + shuffle_xor(sum, 2);
}

extern "C" __global__ void __launch_bounds__(WARPGROUPS * 128, 1) attention_dropout_backward(
    real* __restrict__ dqkv,           // (B, T, 3, NH, HS)
    const real* __restrict__ dout,     // (B, T, NH, HS)
    const real* __restrict__ qkv,      // (B, T, 3, NH, HS)
    const real* __restrict__ out,      // (B, T, NH, HS)
    const float* __restrict__ lse,     // (B, NH, T)  log-sum-exp of each query's scores
    const unsigned* __restrict__ rng,  // (4)  seed low, seed high, step, micro-step
    int B, int T, int C, int NH, float p, unsigned stream,
    const __grid_constant__ TensorMap dout_tiles, const __grid_constant__ TensorMap qkv_tiles,
    const __grid_constant__ TensorMap out_tiles) {
    extern __shared__ __align__(1024) Vec shared[];
    __shared__ Mbarrier full[TILES], empty[TILES];   // tiles i of q, k, v, dy and y
    __shared__ Mbarrier given[TILES], taken[TILES];  // probs and dscores of queries i
    real* q = shared->at;                // (TILES, STEP, 64)
    real* k = q + TILES * TILE;          // (TILES, STEP, 64)
    real* v = k + TILES * TILE;          // (TILES, STEP, 64)
    real* dy = v + TILES * TILE;         // (TILES, STEP, 64)  of dout
    real* y = dy + TILES * TILE;         // (TILES, STEP, 64)  of out; then dq, to be stored
    real* all_probs = y + TILES * TILE;  // (TILES, STEP, STEP)  of queries i, for one tile of keys
    real* all_dscores = all_probs + TILES * TILE;  // the same
    auto copy_tiles = [&](int n, int i) {  // one thread asks TMA
        int column = n % NH * HS, row = n / NH * T + i * STEP, at = i * TILE;
        mbarrier_expect(&full[i], 5 * TILE * sizeof(real));
        tma_load_2d(q + at, &qkv_tiles, &full[i], column, row);
        tma_load_2d(k + at, &qkv_tiles, &full[i], C + column, row);
        tma_load_2d(v + at, &qkv_tiles, &full[i], 2 * C + column, row);
        tma_load_2d(dy + at, &dout_tiles, &full[i], column, row);
        tma_load_2d(y + at, &out_tiles, &full[i], column, row);
    };
    if (threadIdx.x == 0) {
        for (int i = 0; i < TILES; i++) {
            mbarrier_init(&full[i], 1);  // arrivals: the thread that asks TMA
            // All threads of a warpgroup arrive, so that each one's reads and writes are ordered.
            mbarrier_init(&empty[i], 128 * (TILES - i + 2));  // of queries >= i, of dk, of dv
            mbarrier_init(&given[i], 128);
            mbarrier_init(&taken[i], 256);  // of dk and of dv
        }
        for (int i = 0; i < TILES; i++) {
            copy_tiles(blockIdx.x, i);
        }
    }
    __syncthreads();  // the barriers are initialized before any thread waits on them

    int lane = lane_id(), t = lane % 4, group = warp_uniform(warp_id() / 4);
    int first_row = warp_id() % 4 * 16;               // of the warp in a tile
    int query = group * STEP + first_row + lane / 4;  // this lane has it, and the one 8 later
    real *own_q = q + group * TILE, *own_dy = dy + group * TILE, *own_y = y + group * TILE;
    AttentionMask mask(rng, stream, p, 0, T);
    mask.threshold = warp_uniform(mask.threshold);  // in a uniform register: the others suffice
    float scale = rsqrtf(HS) * LOG2_E;  // exp(score / sqrt(HS)) is 2^(score * scale)
    for (int n = blockIdx.x, round = 0; n < HEADS; n += gridDim.x, round++) {
        mask.first = n * mask.size * mask.size;
        real* gradient = dqkv + (size_t)(n / NH) * T * 3 * C + n % NH * HS;  // (T, HS)  dq
        float dq[32] = {}, log_sums[2], deltas[2];
        for (int j = 0; j < TILES; j++) {  // the tile of keys
            if (j <= group && group < TILES) {
                if (j == 0) {
                    for (int r = 0; r < 2; r++) {  // lse of queries past T makes their probs 0
                        bool inside = query + r * 8 < T;
                        log_sums[r] = inside ? lse[(size_t)n * T + query + r * 8] : INFINITY;
                    }
                }
                unsigned kept = mask.draw_lane<32>(query, j * STEP + 2 * t);
                mbarrier_wait(&full[j], round % 2);
                if (j == 0) {
                    mbarrier_wait(&full[group], round % 2);
                    if (HS < 64) clear_channels(own_q, own_dy, group);
                    for (int r = 0; r < 2; r++) {
                        int row = first_row + lane / 4 + r * 8;
                        deltas[r] = multiply_rows(own_dy, own_y, row) * mask.share;
                        log_sums[r] *= LOG2_E;
                    }
                }
                float probs[32], dscores[32];  // (64 queries, 64 keys); first scores and dprobs
                wgmma_fence();
                multiply_transposed(probs, own_q, k + j * TILE);
                multiply_transposed(dscores, own_dy, v + j * TILE);
                wgmma_wait<1>(probs);
                if (j == group) {  // the tile on the diagonal: some keys are in the future
#pragma unroll
                    for (int i = 0; i < 32; i++) {
                        int key = j * STEP + i / 4 * 8 + 2 * t + i % 2;
                        if (key > query + i / 2 % 2 * 8) probs[i] = -INFINITY;
                    }
                }
#pragma unroll
                for (int i = 0; i < 32; i++) {
                    probs[i] = fast_exp2(probs[i] * scale - log_sums[i / 2 % 2]);
                }
                wgmma_wait<0>(dscores);
#pragma unroll
                for (int i = 0; i < 32; i++) {
                    bool keep = (int)(kept << (31 - mask.lane_bit(i))) < 0;  // the bit as a sign
                    dscores[i] = probs[i] * ((keep ? dscores[i] : 0.0f) - deltas[i / 2 % 2]);
                    if (!keep) probs[i] = 0.0f;
                }
                unsigned rounded[2][4][4];
                round_to(rounded[0], probs);
                round_to(rounded[1], dscores);
                wgmma_pin(dq), wgmma_pin(rounded[1]);
                wgmma_fence();
#pragma unroll
                for (int i = 0; i < 4; i++) {  // dq += dscores @ k
                    wgmma_m64k16<64, ACROSS>(dq, rounded[1][i], k + j * TILE + i * 16 * 64);
                }
                wgmma_commit();
                int given_before = round * (group + 1) + j;  // tiles of these queries
                mbarrier_wait(&taken[group], given_before % 2 ^ 1);  // all have been taken
                store_tile(all_probs + group * TILE, rounded[0], first_row);
                store_tile(all_dscores + group * TILE, rounded[1], first_row);
                tma_store_fence();  // makes the tiles visible to wgmma (async proxy)
                mbarrier_arrive(&given[group]);
                wgmma_wait<0>(dq);
                if (j == group) {  // these queries see no later keys
                    __syncwarp();  // all lanes have read `y` before dq passes there
                    store_rows(gradient, dq, rsqrtf(HS) * mask.scale, own_y, j * STEP, T, 3 * C);
                    tma_store_fence();  // orders these writes before the next copy to `y`
                }
                mbarrier_arrive(&empty[j]);
            }
            if (group < 2) {  // 0: dk = dscores.T @ q; 1: dv = probs.T @ dy
                real *tiles = group == 0 ? all_dscores : all_probs, *rows = group == 0 ? q : dy;
                float sum[32] = {};
                wgmma_pin(sum);
                for (int i = j; i < TILES; i++) {
                    mbarrier_wait(&given[i], (round * (i + 1) + j) % 2);
                    wgmma_fence();
#pragma unroll
                    for (int step = 0; step < STEP; step += 16) {
                        wgmma_m64k16<64, true, ACROSS>(sum, tiles + i * TILE + step * 64,
                                                       rows + i * TILE + step * 64);
                    }
                    wgmma_commit();
                }
                wgmma_wait<0>(sum);
                named_barrier(1 + group, 128);  // the tile has been read before results pass there
                float factor = group == 0 ? rsqrtf(HS) * mask.scale : mask.scale;
                store_rows(gradient + (1 + group) * C, sum, factor, tiles + j * TILE, j * STEP, T,
                           3 * C);
                for (int i = j; i < TILES; i++) {
                    mbarrier_arrive(&taken[i]);
                }
                mbarrier_arrive(&empty[j]);
            }
            if (threadIdx.x == 0 && n + gridDim.x < HEADS) {
                mbarrier_wait(&empty[j], round % 2);
                copy_tiles(n + gridDim.x, j);
            }
        }
    }
}
