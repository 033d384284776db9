// attention backward, rung 5: vectorized (128-bit) loads
// Before: rung 4 loads one element at a time from shared memory, 8 of them for 16 multiply-adds.
// Change: a thread loads four neighbouring channels, or probs and dscores of four neighbours, with
//         one load of 16 bytes. For dk and dv, it owns four neighbouring keys. Padding puts rows in
//         different banks (shared memory has 32 banks; each gives one 4-byte word at a time).
// Expect: a quarter of the loads in the products that recompute the scores, about half in the
//         others.
// Needs:  HS <= 128; SHARED <= shared_bytes
// Define: HS = C // NH; WIDTH = ceil_div(HS, 16) * 16; EACH = 4; BLOCKS = 2 if HS <= 64 else 1;
//         TILE = 64 if 16 * 64 * (WIDTH + 4) + 8 * 64 * 68 <= shared_bytes else 32;
//         THREADS = TILE // EACH; SHARED = 16 * TILE * (WIDTH + 4) + 8 * TILE * (TILE + 4);
//         ROWS = 4
// Launch: attention_backward_delta<<<(B * NH, ceil_div(T, ROWS)), ROWS * warp>>>
// Launch: attention_backward_dkdv<<<(B * NH, ceil_div(T, TILE)), THREADS * THREADS, SHARED>>>
// Launch: attention_backward_dq<<<(B * NH, ceil_div(T, TILE)), THREADS * THREADS, SHARED>>>
// Scratch: float32 delta[B, NH, T]
// After:  4
// Left:   reads from shared memory still take 1.6 times the clocks of the multiply-adds, and two of
//         seven products repeat others -> float32 rung 6. Tensor cores multiply matrices of
//         16-bit elements, 16 times as fast on an H200 -> 16bit rung 6.

#include "portable.cuh"

// Four padding columns: rows begin in different banks, and at multiples of 16 bytes.
constexpr int STRIDE = WIDTH + 4;
constexpr int P_STRIDE = TILE + 4;

struct alignas(16) Floats { float at[4]; };  // one 16-byte load from shared memory

__device__ __forceinline__ Floats load_floats(const float* address) {
    return *reinterpret_cast<const Floats*>(address);
}

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
#pragma unroll 1  // unrolled, the loads of several steps would need too many registers
    for (int i = 0; i < HS; i += 4) {  // channels from HS on are zero
        Floats as[EACH], bs[EACH];
        for (int r = 0; r < EACH; r++) {
            as[r] = load_floats(a + (y + r * THREADS) * STRIDE + i);
            bs[r] = load_floats(b + (x + r * THREADS) * STRIDE + i);
        }
        for (int r = 0; r < EACH; r++) {
            for (int c = 0; c < EACH; c++) {
                for (int u = 0; u < 4; u++) {
                    sums[r][c] += as[r].at[u] * bs[c].at[u];
                }
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
    extern __shared__ Floats shared[];
    float* q = shared->at;               // (TILE, STRIDE)
    float* k = q + TILE * STRIDE;        // (TILE, STRIDE)
    float* v = k + TILE * STRIDE;        // (TILE, STRIDE)
    float* dy = v + TILE * STRIDE;       // (TILE, STRIDE)  of dout
    float* p = dy + TILE * STRIDE;       // (TILE, P_STRIDE)  probs of a query and a key
    float* ds = p + TILE * P_STRIDE;   // (TILE, P_STRIDE)  dscores
    int x = threadIdx.x % THREADS, y = threadIdx.x / THREADS;
    int b = blockIdx.x / NH, h = blockIdx.x % NH;
    int first = blockIdx.y * TILE;  // blocks with most queries start first
    const real* head = qkv + (size_t)b * T * 3 * C + h * HS;       // (T, HS)  q; rows 3 * C apart
    const real* head_out = dout + (size_t)b * T * C + h * HS;      // (T, HS)  dout; rows C apart
    load_tile(k, head + C, first, T, 3 * C);
    load_tile(v, head + 2 * C, first, T, 3 * C);

    // Of keys y * EACH + r and channels x + j * THREADS.
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
                p[(y + r * THREADS) * P_STRIDE + x + c * THREADS] = probs[r][c];
                ds[(y + r * THREADS) * P_STRIDE + x + c * THREADS] = dscores[r][c];
            }
        }
        __syncthreads();  // p and ds are complete before any thread reads them

        for (int query = 0; query < TILE; query++) {
            Floats ps = load_floats(p + query * P_STRIDE + y * EACH);
            Floats dss = load_floats(ds + query * P_STRIDE + y * EACH);
            for (int j = 0; j < WIDTH / THREADS; j++) {
                float q_value = q[query * STRIDE + x + j * THREADS];
                float dy_value = dy[query * STRIDE + x + j * THREADS];
                for (int r = 0; r < EACH; r++) {
                    dk[r][j] += dss.at[r] * q_value;
                    dv[r][j] += ps.at[r] * dy_value;
                }
            }
        }
        __syncthreads();  // all have read the tiles before the next ones overwrite them
    }

    for (int r = 0; r < EACH; r++) {
        int key = first + y * EACH + r;
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
    extern __shared__ Floats shared[];
    float* q = shared->at;           // (TILE, STRIDE)
    float* k = q + TILE * STRIDE;    // (TILE, STRIDE)
    float* v = k + TILE * STRIDE;    // (TILE, STRIDE)
    float* dy = v + TILE * STRIDE;   // (TILE, STRIDE)  of dout
    float* ds = dy + TILE * STRIDE;  // (TILE, P_STRIDE)  dscores of a query and a key
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
                ds[(y + r * THREADS) * P_STRIDE + x + c * THREADS] = dscores[r][c];
            }
        }
        __syncthreads();  // ds is complete before any thread reads it

        for (int key = 0; key < TILE; key += 4) {
            Floats dss[EACH];
            for (int r = 0; r < EACH; r++) {
                dss[r] = load_floats(ds + (y + r * THREADS) * P_STRIDE + key);
            }
            for (int j = 0; j < WIDTH / THREADS; j++) {
                for (int u = 0; u < 4; u++) {
                    float k_value = k[(key + u) * STRIDE + x + j * THREADS];
                    for (int r = 0; r < EACH; r++) {
                        dq[r][j] += dss[r].at[u] * k_value;
                    }
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
