// attention forward, rung 1: score matrix in memory (unfused)
// Before: the NumPy reference.
// Change: three kernels, one for each line of the equations. One thread computes each score, one
//         each row of the softmax, and one each element of the output.
// Expect: far below the roof (the roofline ceiling: the limit that memory bandwidth and arithmetic
//         set). The (T, T) matrix of every head is written once, then read and written again by the
//         softmax, then read by the product with v. Each lane reads a key of its own, so a warp's
//         load touches one sector (32 bytes) per lane. And half of the work is masked.
// Needs:  B * NH <= 65535; T <= 65535
// Define: BLOCK = 128
// Launch: attention_forward_scores<<<(ceil_div(T, BLOCK), T, B * NH), BLOCK>>>
// Launch: attention_forward_softmax<<<(ceil_div(T, BLOCK), B * NH), BLOCK>>>
// Launch: attention_forward<<<(ceil_div(C // NH, warp), T, B * NH), warp>>>
// Scratch: float32 probs[B, NH, T, T]
// Left:   a query sees no key that comes after it, so half of the matrix is zero -> rung 2.

#include "portable.cuh"

// probs (B, NH, T, T) = q @ k.T / sqrt(HS): the scores, before the softmax. They are -INFINITY
// where the key is in the future.
extern "C" __global__ void attention_forward_scores(
    real* __restrict__ out,         // (B, T, C)
    float* __restrict__ lse,        // (B, NH, T)  log-sum-exp of each query's scores
    const real* __restrict__ qkv,   // (B, T, 3, NH, HS)
    int B, int T, int C, int NH,
    float* __restrict__ probs) {    // (B, NH, T, T)  (query, key)
    int key = blockIdx.x * BLOCK + threadIdx.x, query = blockIdx.y;
    if (key >= T) return;  // the last block may have more threads than there are keys left
    int HS = C / NH, b = blockIdx.z / NH, h = blockIdx.z % NH;
    const real* q = qkv + ((size_t)b * T + query) * 3 * C + h * HS;    // (HS)
    const real* k = qkv + ((size_t)b * T + key) * 3 * C + C + h * HS;  // (HS)

    float score = 0.0f;
    for (int i = 0; i < HS; i++) {
        score += to_float(q[i]) * to_float(k[i]);
    }
    size_t row = (size_t)blockIdx.z * T + query;
    probs[row * T + key] = key <= query ? score * rsqrtf(HS) : -INFINITY;
}

// Computes probs = softmax(scores) of each row, and lse.
extern "C" __global__ void attention_forward_softmax(
    real* __restrict__ out, float* __restrict__ lse, const real* __restrict__ qkv,
    int B, int T, int C, int NH, float* __restrict__ probs) {
    int query = blockIdx.x * BLOCK + threadIdx.x;
    if (query >= T) return;
    size_t row = (size_t)blockIdx.y * T + query;
    float* p = probs + row * T;  // (T)

    float highest = -INFINITY;
    for (int key = 0; key < T; key++) {
        highest = fmaxf(highest, p[key]);
    }
    float sum = 0.0f;
    for (int key = 0; key < T; key++) {
        p[key] = expf(p[key] - highest);  // at most 1: it cannot overflow
        sum += p[key];
    }
    for (int key = 0; key < T; key++) {
        p[key] /= sum;
    }
    lse[row] = highest + logf(sum);
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
    for (int key = 0; key < T; key++) {
        sum += p[key] * to_float(v[(size_t)key * 3 * C]);
    }
    out[((size_t)b * T + query) * C + h * HS + i] = to_real(sum);
}
