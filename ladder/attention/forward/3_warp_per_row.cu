// attention forward, rung 3: one warp per row of the softmax
// Before: rung 2 gives each row to one thread: the lanes of a warp read addresses 4 * T bytes
//         apart.
// Change: the lanes of a warp share a row. Neighbouring lanes read neighbouring scores (coalesced
//         loads), and find the largest score and the sum together (warp_max, warp_sum).
// Expect: the softmax is memory-bound: it reads its half of the matrix three times, and writes it
//         twice. The two products stay as they are.
// Needs:  B * NH <= 65535; T <= 65535
// Define: BLOCK = 128; ROWS = 4
// Launch: attention_forward_scores<<<(ceil_div(T, BLOCK), T, B * NH), BLOCK>>>
// Launch: attention_forward_softmax<<<(ceil_div(T, ROWS), B * NH), ROWS * warp>>>
// Launch: attention_forward<<<(ceil_div(C // NH, warp), T, B * NH), warp>>>
// Scratch: float32 probs[B, NH, T, T]
// After:  2
// Left:   the products. Each of their multiply-adds loads two elements, and almost all of the
//         sectors that the rung reads are of qkv, not of the score matrix -> rung 4.

#include "portable.cuh"

// probs (B, NH, T, T) = q @ k.T / sqrt(HS): the scores, before the softmax. They are not written
// where the key is in the future.
extern "C" __global__ void attention_forward_scores(
    real* __restrict__ out,         // (B, T, C)
    float* __restrict__ lse,        // (B, NH, T)  log-sum-exp of each query's scores
    const real* __restrict__ qkv,   // (B, T, 3, NH, HS)
    int B, int T, int C, int NH,
    float* __restrict__ probs) {    // (B, NH, T, T)  (query, key)
    int key = blockIdx.x * BLOCK + threadIdx.x, query = blockIdx.y;
    if (key > query) return;
    int HS = C / NH, b = blockIdx.z / NH, h = blockIdx.z % NH;
    const real* q = qkv + ((size_t)b * T + query) * 3 * C + h * HS;    // (HS)
    const real* k = qkv + ((size_t)b * T + key) * 3 * C + C + h * HS;  // (HS)

    float score = 0.0f;
    for (int i = 0; i < HS; i++) {
        score += to_float(q[i]) * to_float(k[i]);
    }
    size_t row = (size_t)blockIdx.z * T + query;
    probs[row * T + key] = score * rsqrtf(HS);
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
extern "C" __global__ void attention_forward(
    real* __restrict__ out, float* __restrict__ lse, const real* __restrict__ qkv,
    int B, int T, int C, int NH, float* __restrict__ probs) {
    int i = blockIdx.x * WARP_SIZE + threadIdx.x, query = blockIdx.y;
    int HS = C / NH, b = blockIdx.z / NH, h = blockIdx.z % NH;
    if (i >= HS) return;
    const real* v = qkv + (size_t)b * T * 3 * C + 2 * C + h * HS + i;  // channel i of key 0
    const float* p = probs + ((size_t)blockIdx.z * T + query) * T;     // (T)

    float sum = 0.0f;
    for (int key = 0; key <= query; key++) {
        sum += p[key] * to_float(v[(size_t)key * 3 * C]);
    }
    out[((size_t)b * T + query) * C + h * HS + i] = to_real(sum);
}
