// attention_dropout forward, rung 1: score matrix in memory (unfused)
// Before: the NumPy reference.
// Change: attention.forward rung 1, with one more step: the kernel of the softmax zeroes what
//         dropout drops. The random bytes come from Philox, a counter-based random number generator
//         (RNG), and no mask is stored.
// Expect: as far below the roof (the roofline ceiling: the limit that memory bandwidth and
//         arithmetic set) as attention.forward rung 1. One thread has a whole row, so it calls
//         Philox for each of its keys, and uses one byte of 16.
// Needs:  B * NH <= 65535; T <= 65535
// Define: BLOCK = 128
// Launch: attention_dropout_forward_scores<<<(ceil_div(T, BLOCK), T, B * NH), BLOCK>>>
// Launch: attention_dropout_forward_softmax<<<(ceil_div(T, BLOCK), B * NH), BLOCK>>>
// Launch: attention_dropout_forward<<<(ceil_div(C // NH, warp), T, B * NH), warp>>>
// Scratch: float32 probs[B, NH, T, T]
// Left:   the matrix goes through memory four times, and half of it is zero -> rung 2.

#include "attention_mask.cuh"
#include "portable.cuh"

// probs (B, NH, T, T) = q @ k.T / sqrt(HS): the scores, before the softmax. They are -INFINITY
// where the key is in the future.
extern "C" __global__ void attention_dropout_forward_scores(
    real* __restrict__ out,            // (B, T, C)
    float* __restrict__ lse,           // (B, NH, T)  log-sum-exp of each query's scores
    const real* __restrict__ qkv,      // (B, T, 3, NH, HS)
    const unsigned* __restrict__ rng,  // (4)  seed low, seed high, step, micro-step
    int B, int T, int C, int NH, float p, unsigned stream,
    float* __restrict__ probs) {       // (B, NH, T, T)  (query, key)
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

// Computes probs = dropout(softmax(scores)) of each row, and lse.
extern "C" __global__ void attention_dropout_forward_softmax(
    real* __restrict__ out, float* __restrict__ lse, const real* __restrict__ qkv,
    const unsigned* __restrict__ rng, int B, int T, int C, int NH, float p, unsigned stream,
    float* __restrict__ probs) {
    int query = blockIdx.x * BLOCK + threadIdx.x;
    if (query >= T) return;
    size_t row = (size_t)blockIdx.y * T + query;
    float* prob = probs + row * T;  // (T)

    float highest = -INFINITY;
    for (int key = 0; key < T; key++) {
        highest = fmaxf(highest, prob[key]);
    }
    float sum = 0.0f;
    for (int key = 0; key < T; key++) {
        prob[key] = expf(prob[key] - highest);  // at most 1: it cannot overflow
        sum += prob[key];
    }
    AttentionMask mask(rng, stream, p, blockIdx.y, T);
    for (int key = 0; key < T; key++) {
        prob[key] = mask.keeps(query, key) ? prob[key] / sum * mask.scale : 0.0f;
    }
    lse[row] = highest + logf(sum);
}

// out = probs @ v
extern "C" __global__ void attention_dropout_forward(
    real* __restrict__ out, float* __restrict__ lse, const real* __restrict__ qkv,
    const unsigned* __restrict__ rng, int B, int T, int C, int NH, float p, unsigned stream,
    float* __restrict__ probs) {
    int i = blockIdx.x * WARP_SIZE + threadIdx.x, query = blockIdx.y;
    int HS = C / NH, b = blockIdx.z / NH, h = blockIdx.z % NH;
    if (i >= HS) return;
    const real* v = qkv + (size_t)b * T * 3 * C + 2 * C + h * HS + i;  // channel i of key 0
    const float* prob = probs + ((size_t)blockIdx.z * T + query) * T;  // (T)

    float sum = 0.0f;
    for (int key = 0; key < T; key++) {
        sum += prob[key] * to_float(v[(size_t)key * 3 * C]);
    }
    out[((size_t)b * T + query) * C + h * HS + i] = to_real(sum);
}
