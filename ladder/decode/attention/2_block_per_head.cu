// decode attention, rung 2: one block per head, scores in shared memory
// Before: rung 1 computes every score once for each channel of the head.
// Change: a block of WARPS warps takes one head. First its warps compute the scores, each key by
//         one warp whose lanes share the channels, and keep them in shared memory. Then they become
//         probabilities. Then each thread sums one channel over all keys.
// Expect: HS times fewer products. Each key and value is read once, coalesced. But one text has
//         only NH blocks, one for every eleventh SM (streaming multiprocessor) of an H200.
// Needs:  B <= 65535; 4 * P + 128 <= shared_bytes
// Define: WARPS = 4
// Launch: decode_attention<<<(NH, B), WARPS * warp, 4 * P>>>
// After:  1
// Left:   most SMs have nothing to do -> rung 3.

#include "portable.cuh"

extern "C" __global__ void decode_attention(
    real* __restrict__ out,             // (B, NH, HS)
    const real* __restrict__ qkv,       // (B, 3, NH, HS)  of the new token
    const real* __restrict__ kv,        // (B, P, 2, NH, HS)  keys and values of all tokens
    const int* __restrict__ positions,  // (B)  of the new token: the last key that it sees
    int B, int P, int C, int NH) {
    extern __shared__ float scores[];  // (P)
    int HS = C / NH, h = blockIdx.x, b = blockIdx.y, keys = positions[b] + 1;
    const real* q = qkv + (size_t)b * 3 * C + h * HS;     // (HS)
    const real* k = kv + (size_t)b * P * 2 * C + h * HS;  // (HS), rows 2 * C apart
    const real* v = k + C;                                // (HS), rows 2 * C apart

    for (int key = warp_id(); key < keys; key += WARPS) {
        float product = 0.0f;
        for (int i = lane_id(); i < HS; i += WARP_SIZE) {
            product += to_float(q[i]) * to_float(k[(size_t)key * 2 * C + i]);
        }
        product = warp_sum(product);
        if (lane_id() == 0) scores[key] = product * rsqrtf(HS);
    }
    __syncthreads();  // all scores are there before any warp looks for the largest

    float largest = -INFINITY, total = 0.0f;
    for (int key = lane_id(); key < keys; key += WARP_SIZE) {  // every warp looks at all scores
        largest = fmaxf(largest, scores[key]);
    }
    largest = warp_max(largest);
    for (int key = lane_id(); key < keys; key += WARP_SIZE) {
        total += expf(scores[key] - largest);
    }
    total = warp_sum(total);

    for (int i = threadIdx.x; i < HS; i += WARPS * WARP_SIZE) {
        float sum = 0.0f;
        for (int key = 0; key < keys; key++) {
            sum += expf(scores[key] - largest) * to_float(v[(size_t)key * 2 * C + i]);
        }
        out[(size_t)b * C + h * HS + i] = to_real(sum / total);
    }
}
