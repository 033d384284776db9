// attention backward, rung 4: FlashAttention (recomputed scores)
// Before: rung 3 writes two (T, T) matrices of every head to memory, and reads them again.
// Change: FlashAttention (Dao et al. 2022): two kernels instead of three. A block takes TILE keys,
//         and goes through the queries that see them, TILE at a time. It recomputes that tile of
//         probs and dscores for its dk and dv. Another kernel takes TILE queries, and goes through
//         the keys for dq.
// Expect: no scratch except delta. There are seven matrix products instead of five, since both
//         kernels recompute the scores. In return, no two blocks add to the same element, so no
//         atomics are needed. The products take 7/5 of the time, and the matrices none.
// Needs:  HS <= 128; SHARED <= shared_bytes
// Define: HS = C // NH; WIDTH = ceil_div(HS, 16) * 16; EACH = 4; BLOCKS = 2 if HS <= 64 else 1;
//         TILE = 64 if 16 * 64 * (WIDTH + 1) + 8 * 64 * 65 <= shared_bytes else 32;
//         THREADS = TILE // EACH; SHARED = 16 * TILE * (WIDTH + 1) + 8 * TILE * (TILE + 1);
//         ROWS = 4
// Launch: attention_backward_delta<<<(B * NH, ceil_div(T, ROWS)), ROWS * warp>>>
// Launch: attention_backward_dkdv<<<(B * NH, ceil_div(T, TILE)), THREADS * THREADS, SHARED>>>
// Launch: attention_backward_dq<<<(B * NH, ceil_div(T, TILE)), THREADS * THREADS, SHARED>>>
// Scratch: float32 delta[B, NH, T]
// After:  3
// Left:   each load from shared memory moves one element -> rung 5.

#include "portable.cuh"

constexpr int STRIDE = WIDTH + 1;  // one padding column: the rows begin in different banks

// Computes delta (B, NH, T) = sum of dout * out over the channels.
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
    size_t at = ((size_t)b * T + query) * C + h * HS;
    float sum = 0.0f;
    for (int i = lane_id(); i < HS; i += WARP_SIZE) {
        sum += to_float(dout[at + i]) * to_float(out[at + i]);
    }
    sum = warp_sum(sum);
    if (lane_id() == 0) delta[(size_t)blockIdx.x * T + query] = sum;
}

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

// sums += a @ b.T, for the rows y + r * THREADS of a and x + c * THREADS of b.
__device__ __forceinline__ void add_products(float (&sums)[EACH][EACH], const float* a,
                                             const float* b, int x, int y) {
    for (int i = 0; i < HS; i++) {
        float as[EACH], bs[EACH];
        for (int r = 0; r < EACH; r++) {
            as[r] = a[(y + r * THREADS) * STRIDE + i];
            bs[r] = b[(x + r * THREADS) * STRIDE + i];
        }
        for (int r = 0; r < EACH; r++) {
            for (int c = 0; c < EACH; c++) {
                sums[r][c] += as[r] * bs[c];
            }
        }
    }
}

// Computes probs and dscores of this thread's queries y + r * THREADS and keys x + c * THREADS. The
// tiles start at tokens `query` and `key`.
__device__ __forceinline__ void recompute(
    float (&probs)[EACH][EACH], float (&dscores)[EACH][EACH],  // (query, key)
    const float* q, const float* k, const float* v, const float* dy,  // (TILE, STRIDE)
    const float* lse, const float* delta,                             // (T)  of this head
    int x, int y, int query, int key, int T) {
    float scores[EACH][EACH] = {}, dprobs[EACH][EACH] = {};
    add_products(scores, q, k, x, y);
    add_products(dprobs, dy, v, x, y);
    query += y;
    key += x;
    for (int r = 0; r < EACH; r++, query += THREADS) {
        bool inside = query < T;
        float log_sum = inside ? lse[query] : 0.0f, row_delta = inside ? delta[query] : 0.0f;
        for (int c = 0; c < EACH; c++) {
            bool sees = inside && key + c * THREADS <= query;
            probs[r][c] = sees ? __expf(scores[r][c] * rsqrtf(HS) - log_sum) : 0.0f;
            dscores[r][c] = probs[r][c] * (dprobs[r][c] - row_delta);
        }
    }
}

// Computes dk and dv of TILE keys.
extern "C" __global__ void __launch_bounds__(THREADS * THREADS, BLOCKS) attention_backward_dkdv(
    real* __restrict__ dqkv, const real* __restrict__ dout, const real* __restrict__ qkv,
    const real* __restrict__ out, const float* __restrict__ lse, int B, int T, int C, int NH,
    float* __restrict__ delta) {
    extern __shared__ float shared[];
    float* q = shared;                   // (TILE, STRIDE)
    float* k = q + TILE * STRIDE;        // (TILE, STRIDE)
    float* v = k + TILE * STRIDE;        // (TILE, STRIDE)
    float* dy = v + TILE * STRIDE;       // (TILE, STRIDE)  of dout
    float* p = dy + TILE * STRIDE;       // (TILE, TILE + 1)  probs of a query and a key
    float* ds = p + TILE * (TILE + 1);   // (TILE, TILE + 1)  dscores
    int x = threadIdx.x % THREADS, y = threadIdx.x / THREADS;
    int b = blockIdx.x / NH, h = blockIdx.x % NH;
    int first = blockIdx.y * TILE;  // blocks with most queries start first
    const real* head = qkv + (size_t)b * T * 3 * C + h * HS;       // (T, HS)  q; rows 3 * C apart
    const real* head_out = dout + (size_t)b * T * C + h * HS;      // (T, HS)  dout; rows C apart
    load_tile(k, head + C, first, T, 3 * C);
    load_tile(v, head + 2 * C, first, T, 3 * C);

    // Of keys y + r * THREADS and channels x + j * THREADS.
    float dk[EACH][WIDTH / THREADS] = {}, dv[EACH][WIDTH / THREADS] = {};
    for (int start = first; start < T; start += TILE) {  // earlier queries do not see these keys
        load_tile(q, head, start, T, 3 * C);
        load_tile(dy, head_out, start, T, C);
        __syncthreads();  // the tiles are complete before any thread reads them

        float probs[EACH][EACH], dscores[EACH][EACH];
        size_t rows = (size_t)blockIdx.x * T;
        recompute(probs, dscores, q, k, v, dy, lse + rows, delta + rows, x, y, start, first, T);
        for (int r = 0; r < EACH; r++) {
            for (int c = 0; c < EACH; c++) {
                p[(y + r * THREADS) * (TILE + 1) + x + c * THREADS] = probs[r][c];
                ds[(y + r * THREADS) * (TILE + 1) + x + c * THREADS] = dscores[r][c];
            }
        }
        __syncthreads();  // p and ds are complete before any thread reads them

        for (int query = 0; query < TILE; query++) {
            float ps[EACH], dss[EACH];
            for (int r = 0; r < EACH; r++) {
                ps[r] = p[query * (TILE + 1) + y + r * THREADS];
                dss[r] = ds[query * (TILE + 1) + y + r * THREADS];
            }
            for (int j = 0; j < WIDTH / THREADS; j++) {
                float q_value = q[query * STRIDE + x + j * THREADS];
                float dy_value = dy[query * STRIDE + x + j * THREADS];
                for (int r = 0; r < EACH; r++) {
                    dk[r][j] += dss[r] * q_value;
                    dv[r][j] += ps[r] * dy_value;
                }
            }
        }
        __syncthreads();  // all have read the tiles before the next ones overwrite them
    }

    for (int r = 0; r < EACH; r++) {
        int key = first + y + r * THREADS;
        if (key >= T) break;
        real* gradient = dqkv + ((size_t)b * T + key) * 3 * C + h * HS;  // dq; dk and dv follow
        for (int j = 0; j < WIDTH / THREADS; j++) {
            int i = x + j * THREADS;
            if (i >= HS) break;
            gradient[C + i] = to_real(dk[r][j] * rsqrtf(HS));
            gradient[2 * C + i] = to_real(dv[r][j]);
        }
    }
}

// Computes dq of TILE queries.
extern "C" __global__ void __launch_bounds__(THREADS * THREADS, BLOCKS) attention_backward_dq(
    real* __restrict__ dqkv, const real* __restrict__ dout, const real* __restrict__ qkv,
    const real* __restrict__ out, const float* __restrict__ lse, int B, int T, int C, int NH,
    float* __restrict__ delta) {
    extern __shared__ float shared[];
    float* q = shared;               // (TILE, STRIDE)
    float* k = q + TILE * STRIDE;    // (TILE, STRIDE)
    float* v = k + TILE * STRIDE;    // (TILE, STRIDE)
    float* dy = v + TILE * STRIDE;   // (TILE, STRIDE)  of dout
    float* ds = dy + TILE * STRIDE;  // (TILE, TILE + 1)  dscores of a query and a key
    int x = threadIdx.x % THREADS, y = threadIdx.x / THREADS;
    int b = blockIdx.x / NH, h = blockIdx.x % NH;
    int first = (gridDim.y - 1 - blockIdx.y) * TILE;  // blocks with most keys start first
    const real* head = qkv + (size_t)b * T * 3 * C + h * HS;  // (T, HS)  q; rows 3 * C apart
    load_tile(q, head, first, T, 3 * C);
    load_tile(dy, dout + (size_t)b * T * C + h * HS, first, T, C);

    float dq[EACH][WIDTH / THREADS] = {};  // of query y + r * THREADS and channel x + j * THREADS
    for (int start = 0; start <= first; start += TILE) {  // later keys are in the future
        load_tile(k, head + C, start, T, 3 * C);
        load_tile(v, head + 2 * C, start, T, 3 * C);
        __syncthreads();  // the tiles are complete before any thread reads them

        float probs[EACH][EACH], dscores[EACH][EACH];
        size_t rows = (size_t)blockIdx.x * T;
        recompute(probs, dscores, q, k, v, dy, lse + rows, delta + rows, x, y, first, start, T);
        for (int r = 0; r < EACH; r++) {
            for (int c = 0; c < EACH; c++) {
                ds[(y + r * THREADS) * (TILE + 1) + x + c * THREADS] = dscores[r][c];
            }
        }
        __syncthreads();  // ds is complete before any thread reads it

        for (int key = 0; key < TILE; key++) {
            float dss[EACH];
            for (int r = 0; r < EACH; r++) {
                dss[r] = ds[(y + r * THREADS) * (TILE + 1) + key];
            }
            for (int j = 0; j < WIDTH / THREADS; j++) {
                float k_value = k[key * STRIDE + x + j * THREADS];
                for (int r = 0; r < EACH; r++) {
                    dq[r][j] += dss[r] * k_value;
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
            dqkv[((size_t)b * T + query) * 3 * C + h * HS + i] = to_real(dq[r][j] * rsqrtf(HS));
        }
    }
}
