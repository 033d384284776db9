// attention forward, rung 6: vectorized (128-bit) loads
// Before: rung 5 loads one element at a time from shared memory, 8 of them for 16 multiply-adds.
// Change: a thread loads four neighbouring channels of q and k, and the weights of four
//         neighbouring keys, with one load of 16 bytes. Padding puts rows in different banks
//         (shared memory has 32 banks; each gives one 4-byte word at a time).
// Expect: a quarter of the loads in the first product, half in the second.
// Needs:  HS <= 128; SHARED <= shared_bytes
// Define: HS = C // NH; WIDTH = ceil_div(HS, 16) * 16; EACH = 4;
//         TILE = 64 if 12 * 64 * (WIDTH + 4) + 4 * 64 * 68 <= shared_bytes else 32;
//         THREADS = TILE // EACH; SHARED = 12 * TILE * (WIDTH + 4) + 4 * TILE * (TILE + 4)
// Launch: attention_forward<<<(B * NH, ceil_div(T, TILE)), THREADS * THREADS, SHARED>>>
// After:  5
// Left:   reads from shared memory still take 1.6 times the clocks of the multiply-adds -> float32
//         rung 7. Tensor cores multiply matrices of 16-bit elements, 16 times as fast on an H200
//         -> 16bit rung 7.

#include "portable.cuh"

// Four padding columns: rows begin in different banks, and at multiples of 16 bytes.
constexpr int STRIDE = WIDTH + 4;
constexpr int P_STRIDE = TILE + 4;

struct alignas(16) Floats { float at[4]; };  // one 16-byte load from shared memory

__device__ __forceinline__ Floats load_floats(const float* address) {
    return *reinterpret_cast<const Floats*>(address);
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

// The launch bounds allow 128 registers per thread, so that two blocks of 256 threads fit on an SM.
extern "C" __global__ void __launch_bounds__(THREADS * THREADS, 2) attention_forward(
    real* __restrict__ out,        // (B, T, C)
    float* __restrict__ lse,       // (B, NH, T)  log-sum-exp of each query's scores
    const real* __restrict__ qkv,  // (B, T, 3, NH, HS)
    int B, int T, int C, int NH) {
    extern __shared__ Floats shared[];
    float* q = shared->at;         // (TILE, STRIDE)
    float* k = q + TILE * STRIDE;  // (TILE, STRIDE)
    float* v = k + TILE * STRIDE;  // (TILE, STRIDE)
    float* p = v + TILE * STRIDE;  // (TILE, P_STRIDE)  exp(score - largest) (query, key)
    // The THREADS lanes of one y share queries y, y + THREADS, ...; each lane has its own keys.
    int x = threadIdx.x % THREADS, y = threadIdx.x / THREADS;
    int b = blockIdx.x / NH, h = blockIdx.x % NH;
    int first = (gridDim.y - 1 - blockIdx.y) * TILE;    // blocks with most keys start first
    const real* head = qkv + (size_t)b * T * 3 * C + h * HS;  // (T, HS)  q; rows 3 * C apart
    load_tile(q, head, first, T, 3 * C);

    float sums[EACH][WIDTH / THREADS] = {};  // p @ v of query y + r * THREADS, channel x + ...
    float largest[EACH], total[EACH];        // of that query; total: of this thread's keys only
    for (int r = 0; r < EACH; r++) {
        largest[r] = -INFINITY;
        total[r] = 0.0f;
    }
    for (int start = 0; start <= first; start += TILE) {  // later keys are in the future
        load_tile(k, head + C, start, T, 3 * C);
        load_tile(v, head + 2 * C, start, T, 3 * C);
        __syncthreads();  // the tiles are complete before any thread reads them

        float scores[EACH][EACH] = {};
        for (int i = 0; i < HS; i += 4) {  // channels from HS on are zero
            Floats qs[EACH], ks[EACH];
            for (int r = 0; r < EACH; r++) {
                qs[r] = load_floats(q + (y + r * THREADS) * STRIDE + i);
                ks[r] = load_floats(k + (x + r * THREADS) * STRIDE + i);
            }
            for (int r = 0; r < EACH; r++) {
                for (int c = 0; c < EACH; c++) {
                    for (int u = 0; u < 4; u++) {
                        scores[r][c] += qs[r].at[u] * ks[c].at[u];
                    }
                }
            }
        }

        for (int r = 0; r < EACH; r++) {
            int query = first + y + r * THREADS;
            float before = largest[r];
            for (int c = 0; c < EACH; c++) {
                int key = start + x + c * THREADS;
                scores[r][c] = key <= query ? scores[r][c] * rsqrtf(HS) : -INFINITY;
                largest[r] = fmaxf(largest[r], scores[r][c]);
            }
            for (int distance = THREADS / 2; distance > 0; distance /= 2) {
                largest[r] = fmaxf(largest[r], shuffle_xor(largest[r], distance));
            }
            float rescale = __expf(before - largest[r]);  // 0 at the first tile
            total[r] *= rescale;
            for (int j = 0; j < WIDTH / THREADS; j++) {
                sums[r][j] *= rescale;
            }
            for (int c = 0; c < EACH; c++) {
                float weight = __expf(scores[r][c] - largest[r]);
                total[r] += weight;
                p[(y + r * THREADS) * P_STRIDE + x + c * THREADS] = weight;
            }
        }
        __syncthreads();  // p is complete before any thread reads it

        for (int key = 0; key < TILE; key += 4) {
            Floats ps[EACH];
            for (int r = 0; r < EACH; r++) {
                ps[r] = load_floats(p + (y + r * THREADS) * P_STRIDE + key);
            }
            for (int j = 0; j < WIDTH / THREADS; j++) {
                for (int u = 0; u < 4; u++) {
                    float value = v[(key + u) * STRIDE + x + j * THREADS];
                    for (int r = 0; r < EACH; r++) {
                        sums[r][j] += ps[r].at[u] * value;
                    }
                }
            }
        }
        __syncthreads();  // all have read the tiles before the next ones overwrite them
    }

    for (int r = 0; r < EACH; r++) {
        for (int distance = THREADS / 2; distance > 0; distance /= 2) {
            total[r] += shuffle_xor(total[r], distance);
        }
        int query = first + y + r * THREADS;
        if (query >= T) continue;  // its shuffles are done; all lanes of a query skip together
        float inverse = 1.0f / total[r];
        for (int j = 0; j < WIDTH / THREADS; j++) {
            int i = x + j * THREADS;
            if (i >= HS) break;
            out[((size_t)b * T + query) * C + h * HS + i] = to_real(sums[r][j] * inverse);
        }
        if (x == 0) lse[(size_t)blockIdx.x * T + query] = largest[r] + logf(total[r]);
    }
}
