// decode attention, rung 1: one thread per output
// Before: the NumPy reference.
// Change: one thread for each of the B * C outputs goes through the keys of its head. Online
//         softmax: the largest score and the sum are those of the keys so far, and what was summed
//         is scaled down when a larger score appears.
// Expect: far below the roof. The HS threads of a head each compute all of its scores, so the same
//         products are computed HS times. For one text there are only C threads, and each goes
//         through all keys alone.
// Needs:  B <= 65535
// Define: BLOCK = 64
// Launch: decode_attention<<<(ceil_div(C, BLOCK), B), BLOCK>>>
// Left:   every score is computed HS times -> rung 2.

#include "portable.cuh"

extern "C" __global__ void decode_attention(
    real* __restrict__ out,             // (B, NH, HS)
    const real* __restrict__ qkv,       // (B, 3, NH, HS)  of the new token
    const real* __restrict__ kv,        // (B, P, 2, NH, HS)  keys and values of all tokens
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
