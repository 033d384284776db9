// decode append_attention, rung 1: two kernels (unfused)
// Before: the NumPy reference.
// Change: decode.append rung 1 writes the new token's key and value into the cache; then
//         decode.attention rung 1, one thread per output, reads all of them.
// Expect: two launches. The second kernel reads from memory what the first has just written.
// Needs:  B <= 65535
// Define: BLOCK = 64
// Launch: decode_append_attention_append<<<(ceil_div(2 * C, BLOCK), B), BLOCK>>>
// Launch: decode_append_attention<<<(ceil_div(C, BLOCK), B), BLOCK>>>
// Left:   the launch of the append, and an attention without any parallelism over keys -> rung 2.

#include "portable.cuh"

extern "C" __global__ void decode_append_attention_append(
    real* __restrict__ out,             // (B, C)
    real* __restrict__ kv,              // (B, P, 2, C)  key, value
    const real* __restrict__ qkv,       // (B, 3, C)
    const int* __restrict__ positions,  // (B)
    int B, int P, int C, int NH) {
    int i = blockIdx.x * BLOCK + threadIdx.x, b = blockIdx.y;
    if (i >= 2 * C) return;  // the last block may have more threads than there are elements left
    kv[((size_t)b * P + positions[b]) * 2 * C + i] = qkv[(size_t)b * 3 * C + C + i];
}

extern "C" __global__ void decode_append_attention(
    real* __restrict__ out,             // (B, NH, HS)
    real* __restrict__ kv,              // (B, P, 2, NH, HS)  keys and values of all tokens
    const real* __restrict__ qkv,       // (B, 3, NH, HS)  of the new token
    const int* __restrict__ positions,  // (B)  of the new token: the last key that it sees
    int B, int P, int C, int NH) {
    int c = blockIdx.x * BLOCK + threadIdx.x, b = blockIdx.y;
    if (c >= C) return;  // the last block may have more threads than there are channels left
    int HS = C / NH, h = c / HS;
    const real* q = qkv + (size_t)b * 3 * C + h * HS;    // (HS)
    const real* k = kv + (size_t)b * P * 2 * C + h * HS; // (HS), rows 2 * C apart
    const real* v = kv + (size_t)b * P * 2 * C + C + c;  // channel c of position 0

    float largest = -INFINITY, total = 0.0f, sum = 0.0f;
    for (int key = 0; key <= positions[b]; key++) {
        float score = 0.0f;
        for (int i = 0; i < HS; i++) {
            score += to_float(q[i]) * to_float(k[(size_t)key * 2 * C + i]);
        }
        score *= rsqrtf(HS);
        float before = largest;
        largest = fmaxf(largest, score);
        float rescale = expf(before - largest), weight = expf(score - largest);
        total = total * rescale + weight;
        sum = sum * rescale + weight * to_float(v[(size_t)key * 2 * C]);
    }
    out[(size_t)b * C + c] = to_real(sum / total);
}
