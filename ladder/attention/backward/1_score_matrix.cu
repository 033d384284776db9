// attention backward, rung 1: score matrix in memory (unfused)
// Before: the NumPy reference.
// Change: a kernel for each line of the equations. With delta = sum(dout * out) of a query:
//             probs = exp(q @ k.T / sqrt(HS) - lse);   dscores = probs * (dout @ v.T - delta);
//             dv = probs.T @ dout;   dq = dscores @ k / sqrt(HS);   dk = dscores.T @ q / sqrt(HS)
// Expect: far below the roof (the roofline ceiling: the limit that memory bandwidth and arithmetic
//         set). Two (T, T) matrices of every head are written and read, twice each. Each
//         multiply-add needs two loads. And half of the work is masked.
// Needs:  B * NH <= 65535; T <= 65535
// Define: BLOCK = 128
// Launch: attention_backward_delta<<<(ceil_div(T, BLOCK), B * NH), BLOCK>>>
// Launch: attention_backward_scores<<<(ceil_div(T, BLOCK), T, B * NH), BLOCK>>>
// Launch: attention_backward_dq<<<(ceil_div(C // NH, warp), T, B * NH), warp>>>
// Launch: attention_backward_dkdv<<<(ceil_div(C // NH, warp), T, B * NH), warp>>>
// Scratch: float32 delta[B, NH, T]; float32 probs[B, NH, T, T]; float32 dscores[B, NH, T, T]
// Left:   a query sees no key that comes after it, so half of both matrices is zero -> rung 2.

#include "portable.cuh"

// Computes delta (B, NH, T) = sum of dout * out over the channels.
extern "C" __global__ void attention_backward_delta(
    real* __restrict__ dqkv,        // (B, T, 3, NH, HS)
    const real* __restrict__ dout,  // (B, T, NH, HS)
    const real* __restrict__ qkv,   // (B, T, 3, NH, HS)
    const real* __restrict__ out,   // (B, T, NH, HS)
    const float* __restrict__ lse,  // (B, NH, T)  log-sum-exp of each query's scores
    int B, int T, int C, int NH,
    float* __restrict__ delta,      // (B, NH, T)
    float* __restrict__ probs,      // (B, NH, T, T)  (query, key)
    float* __restrict__ dscores) {  // (B, NH, T, T)
    int query = blockIdx.x * BLOCK + threadIdx.x;
    if (query >= T) return;  // the last block may have more threads than there are queries left
    int HS = C / NH, b = blockIdx.y / NH, h = blockIdx.y % NH;
    size_t at = ((size_t)b * T + query) * C + h * HS;

    float sum = 0.0f;
    for (int i = 0; i < HS; i++) {
        sum += to_float(dout[at + i]) * to_float(out[at + i]);
    }
    delta[(size_t)blockIdx.y * T + query] = sum;
}

// Computes probs and dscores, with one thread for each query and key.
extern "C" __global__ void attention_backward_scores(
    real* __restrict__ dqkv, const real* __restrict__ dout, const real* __restrict__ qkv,
    const real* __restrict__ out, const float* __restrict__ lse, int B, int T, int C, int NH,
    float* __restrict__ delta, float* __restrict__ probs, float* __restrict__ dscores) {
    int key = blockIdx.x * BLOCK + threadIdx.x, query = blockIdx.y;
    if (key >= T) return;
    int HS = C / NH, b = blockIdx.z / NH, h = blockIdx.z % NH;
    const real* q = qkv + ((size_t)b * T + query) * 3 * C + h * HS;    // (HS)
    const real* k = qkv + ((size_t)b * T + key) * 3 * C + C + h * HS;  // (HS)
    const real* v = k + C;                                             // (HS)
    const real* dy = dout + ((size_t)b * T + query) * C + h * HS;      // (HS)

    float score = 0.0f, dprob = 0.0f;
    for (int i = 0; i < HS; i++) {
        score += to_float(q[i]) * to_float(k[i]);
        dprob += to_float(dy[i]) * to_float(v[i]);
    }
    size_t row = (size_t)blockIdx.z * T + query;
    float prob = key <= query ? expf(score * rsqrtf(HS) - lse[row]) : 0.0f;
    probs[row * T + key] = prob;
    dscores[row * T + key] = prob * (dprob - delta[row]);
}

// dq = dscores @ k / sqrt(HS)
extern "C" __global__ void attention_backward_dq(
    real* __restrict__ dqkv, const real* __restrict__ dout, const real* __restrict__ qkv,
    const real* __restrict__ out, const float* __restrict__ lse, int B, int T, int C, int NH,
    float* __restrict__ delta, float* __restrict__ probs, float* __restrict__ dscores) {
    int i = blockIdx.x * WARP_SIZE + threadIdx.x, query = blockIdx.y;
    int HS = C / NH, b = blockIdx.z / NH, h = blockIdx.z % NH;
    if (i >= HS) return;
    const real* k = qkv + (size_t)b * T * 3 * C + C + h * HS + i;     // channel i of key 0
    const float* ds = dscores + ((size_t)blockIdx.z * T + query) * T;  // (T)

    float sum = 0.0f;
    for (int key = 0; key < T; key++) {
        sum += ds[key] * to_float(k[(size_t)key * 3 * C]);
    }
    dqkv[((size_t)b * T + query) * 3 * C + h * HS + i] = to_real(sum * rsqrtf(HS));
}

// dk = dscores.T @ q / sqrt(HS), dv = probs.T @ dout
extern "C" __global__ void attention_backward_dkdv(
    real* __restrict__ dqkv, const real* __restrict__ dout, const real* __restrict__ qkv,
    const real* __restrict__ out, const float* __restrict__ lse, int B, int T, int C, int NH,
    float* __restrict__ delta, float* __restrict__ probs, float* __restrict__ dscores) {
    int i = blockIdx.x * WARP_SIZE + threadIdx.x, key = blockIdx.y;
    int HS = C / NH, b = blockIdx.z / NH, h = blockIdx.z % NH;
    if (i >= HS) return;
    const real* q = qkv + (size_t)b * T * 3 * C + h * HS + i;        // channel i of query 0
    const real* dy = dout + (size_t)b * T * C + h * HS + i;          // channel i of query 0
    const float* p = probs + (size_t)blockIdx.z * T * T + key;       // of query 0
    const float* ds = dscores + (size_t)blockIdx.z * T * T + key;    // of query 0

    float dk = 0.0f, dv = 0.0f;
    for (int query = 0; query < T; query++) {
        dk += ds[(size_t)query * T] * to_float(q[(size_t)query * 3 * C]);
        dv += p[(size_t)query * T] * to_float(dy[(size_t)query * C]);
    }
    real* gradient = dqkv + ((size_t)b * T + key) * 3 * C + h * HS + i;  // dq; dk and dv follow
    gradient[C] = to_real(dk * rsqrtf(HS));
    gradient[2 * C] = to_real(dv);
}
