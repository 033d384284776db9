// attention forward, rung 4: tiled products (the score matrix stays in memory)
// Before: rung 3's products load two elements for each multiply-add. Each element of k and v is
//         loaded once for every query that sees it, although neighbouring queries see the same.
// Change: both products are tiled, as in matmul.forward rungs 2 and 3. A block computes TILE x TILE
//         scores, or TILE rows of out. It copies tiles to shared memory, and each of its threads
//         computes 4 x 4 results in registers. The softmax stays as it is.
// Expect: a tile of 64 rows serves 64 queries, so 64 times fewer loads of k and v from memory. The
//         products are bound by reads from shared memory: 8 loads of one element for 16
//         multiply-adds. What is left from memory is mostly the score matrix.
// Needs:  B * NH <= 65535; T <= 65535; HS <= 128; SHARED <= shared_bytes
// Define: HS = C // NH; WIDTH = ceil_div(HS, 16) * 16; EACH = 4; ROWS = 4;
//         TILE = 64 if 4 * 64 * (WIDTH + max(WIDTH, 64) + 2) <= shared_bytes else 32;
//         THREADS = TILE // EACH; SHARED = 4 * TILE * (WIDTH + max(WIDTH, TILE) + 2)
// Launch: attention_forward_scores<<<(ceil_div(T, TILE), ceil_div(T, TILE), B * NH),
//         THREADS * THREADS, SHARED>>>
// Launch: attention_forward_softmax<<<(ceil_div(T, ROWS), B * NH), ROWS * warp>>>
// Launch: attention_forward<<<(B * NH, ceil_div(T, TILE)), THREADS * THREADS, SHARED>>>
// Scratch: float32 probs[B, NH, T, T]
// After:  3
// Rewrite: threads own 4 x 4 results instead of one, which changes every line of both products.
// Left:   every score passes through memory seven times, and the scores take 4 * B * NH * T * T
//         bytes -> rung 5.

#include "portable.cuh"

constexpr int STRIDE = WIDTH + 1;  // one padding column: the rows begin in different banks

// Copies TILE rows of one head, from row `first` on, to shared memory. Rows past T and channels
// past HS become zeros.
__device__ __forceinline__ void load_tile(float* tile /* (TILE, STRIDE) */,
                                          const real* head /* (T, HS), rows `step` apart */,
                                          int first, int T, int step) {
    for (int t = threadIdx.x; t < TILE * WIDTH; t += THREADS * THREADS) {
        int row = t / WIDTH, i = t % WIDTH;
        bool inside = first + row < T && i < HS;
        tile[row * STRIDE + i] = inside ? to_float(head[(size_t)(first + row) * step + i]) : 0.0f;
    }
}

// probs (B, NH, T, T) = q @ k.T / sqrt(HS): the scores, before the softmax. They are not written
// where the key is in the future.
extern "C" __global__ void __launch_bounds__(THREADS * THREADS, 2) attention_forward_scores(
    real* __restrict__ out,         // (B, T, C)
    float* __restrict__ lse,        // (B, NH, T)  log-sum-exp of each query's scores
    const real* __restrict__ qkv,   // (B, T, 3, NH, HS)
    int B, int T, int C, int NH,
    float* __restrict__ probs) {    // (B, NH, T, T)  (query, key)
    extern __shared__ float shared[];
    float* q = shared;             // (TILE, STRIDE)
    float* k = q + TILE * STRIDE;  // (TILE, STRIDE)
    // A thread has queries y, y + THREADS, ... and keys x, x + THREADS, ... of the tile.
    int x = threadIdx.x % THREADS, y = threadIdx.x / THREADS;
    int b = blockIdx.z / NH, h = blockIdx.z % NH;
    int start = blockIdx.x * TILE, first = blockIdx.y * TILE;  // the tile's first key and query
    if (start > first) return;  // all of its keys are in the future
    const real* head = qkv + (size_t)b * T * 3 * C + h * HS;  // (T, HS)  q; rows 3 * C apart
    load_tile(q, head, first, T, 3 * C);
    load_tile(k, head + C, start, T, 3 * C);
    __syncthreads();  // the tiles are complete before any thread reads them

    float scores[EACH][EACH] = {};
    for (int i = 0; i < HS; i++) {
        float qs[EACH], ks[EACH];
        for (int r = 0; r < EACH; r++) {
            qs[r] = q[(y + r * THREADS) * STRIDE + i];
            ks[r] = k[(x + r * THREADS) * STRIDE + i];
        }
        for (int r = 0; r < EACH; r++) {
            for (int c = 0; c < EACH; c++) {
                scores[r][c] += qs[r] * ks[c];
            }
        }
    }

    for (int r = 0; r < EACH; r++) {
        int query = first + y + r * THREADS;
        for (int c = 0; c < EACH; c++) {
            int key = start + x + c * THREADS;
            if (query >= T || key > query) continue;
            probs[((size_t)blockIdx.z * T + query) * T + key] = scores[r][c] * rsqrtf(HS);
        }
    }
}

// Computes probs = softmax(scores) of each row, and lse.
extern "C" __global__ void attention_forward_softmax(
    real* __restrict__ out, float* __restrict__ lse, const real* __restrict__ qkv,
    int B, int T, int C, int NH, float* __restrict__ probs) {
    int lane = lane_id();
    int query = blockIdx.x * ROWS + warp_id();
    if (query >= T) return;  // whole warps return, so no shuffle below misses a lane
    size_t row = (size_t)blockIdx.y * T + query;
    float* p = probs + row * T;  // (T)

    float highest = -INFINITY;
    for (int key = lane; key <= query; key += WARP_SIZE) {
        highest = fmaxf(highest, p[key]);
    }
    highest = warp_max(highest);
    float sum = 0.0f;
    for (int key = lane; key <= query; key += WARP_SIZE) {
        p[key] = expf(p[key] - highest);  // at most 1: it cannot overflow
        sum += p[key];
    }
    sum = warp_sum(sum);
    for (int key = lane; key <= query; key += WARP_SIZE) {
        p[key] /= sum;
    }
    if (lane == 0) lse[row] = highest + logf(sum);
}

// out = probs @ v
extern "C" __global__ void __launch_bounds__(THREADS * THREADS, 2) attention_forward(
    real* __restrict__ out, float* __restrict__ lse, const real* __restrict__ qkv,
    int B, int T, int C, int NH, float* __restrict__ probs) {
    extern __shared__ float shared[];
    float* v = shared;             // (TILE, STRIDE)
    float* p = v + TILE * STRIDE;  // (TILE, TILE + 1)  probs (query, key)
    int x = threadIdx.x % THREADS, y = threadIdx.x / THREADS;
    int b = blockIdx.x / NH, h = blockIdx.x % NH;
    int first = (gridDim.y - 1 - blockIdx.y) * TILE;    // blocks with most keys start first
    const real* head = qkv + (size_t)b * T * 3 * C + h * HS;  // (T, HS)  q; rows 3 * C apart
    const float* rows = probs + (size_t)blockIdx.x * T * T;   // (T, T)  of this head

    float sums[EACH][WIDTH / THREADS] = {};  // p @ v of query y + r * THREADS, channel x + ...
    for (int start = 0; start <= first; start += TILE) {  // later keys are in the future
        load_tile(v, head + 2 * C, start, T, 3 * C);
        for (int t = threadIdx.x; t < TILE * TILE; t += THREADS * THREADS) {
            int query = first + t / TILE, key = start + t % TILE;
            bool sees = query < T && key <= query;
            p[t / TILE * (TILE + 1) + t % TILE] = sees ? rows[(size_t)query * T + key] : 0.0f;
        }
        __syncthreads();  // the tiles are complete before any thread reads them

        for (int key = 0; key < TILE; key++) {
            float ps[EACH];
            for (int r = 0; r < EACH; r++) {
                ps[r] = p[(y + r * THREADS) * (TILE + 1) + key];
            }
            for (int j = 0; j < WIDTH / THREADS; j++) {
                float value = v[key * STRIDE + x + j * THREADS];
                for (int r = 0; r < EACH; r++) {
                    sums[r][j] += ps[r] * value;
                }
            }
        }
        __syncthreads();  // all have read the tiles before the next ones overwrite them
    }

    for (int r = 0; r < EACH; r++) {
        int query = first + y + r * THREADS;
        if (query >= T) break;
        for (int j = 0; j < WIDTH / THREADS; j++) {
            int i = x + j * THREADS;
            if (i >= HS) break;
            out[((size_t)b * T + query) * C + h * HS + i] = to_real(sums[r][j]);
        }
    }
}
