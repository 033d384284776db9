// decode attention, rung 3: split over the sequence (flash-decoding)
// Before: rung 2 has one block per head, which goes through all keys.
// Change: flash-decoding (Dao et al. 2023): KEYS keys make a split, and every split of every head
//         has a block. It leaves what it has summed in memory, with its own largest score and the
//         sum of its weights. A second kernel scales the splits to the largest score of all and
//         adds them up.
// Expect: at P = 1024 and 12 heads there are 192 blocks instead of 12: nearly as many times
//         faster, plus a launch. Blocks beyond the position end at once.
// Needs:  NH <= 65535; B <= 65535
// Define: HS = C // NH; WARPS = 4; KEYS = 64; SPLITS = ceil_div(P, KEYS)
// Launch: decode_attention_split<<<(SPLITS, NH, B), WARPS * warp>>>
// Launch: decode_attention<<<(NH, B), WARPS * warp>>>
// Scratch: float32 sums[B, NH, SPLITS, HS]; float32 largests[B, NH, SPLITS];
//         float32 totals[B, NH, SPLITS]
// After:  2
// Left:   loads are 2 or 4 bytes wide, and each waits for the one before -> rung 4.

#include "portable.cuh"

extern "C" __global__ void decode_attention_split(
    real* __restrict__ out,             // (B, NH, HS)
    const real* __restrict__ qkv,       // (B, 3, NH, HS)  of the new token
    const real* __restrict__ kv,        // (B, P, 2, NH, HS)  keys and values of all tokens
    const int* __restrict__ positions,  // (B)  of the new token: the last key that it sees
    int B, int P, int C, int NH,
    float* __restrict__ sums,           // (B, NH, SPLITS, HS)  weights @ v of a split
    float* __restrict__ largests,       // (B, NH, SPLITS)  the largest score of a split
    float* __restrict__ totals) {       // (B, NH, SPLITS)  the sum of its weights
    __shared__ float scores[KEYS];
    int h = blockIdx.y, b = blockIdx.z, start = blockIdx.x * KEYS;
    int keys = min(positions[b] + 1 - start, KEYS);
    if (keys <= 0) return;  // the split is beyond the position; the whole block returns
    const real* q = qkv + (size_t)b * 3 * C + h * HS;               // (HS)
    const real* k = kv + ((size_t)b * P + start) * 2 * C + h * HS;  // (HS), rows 2 * C apart
    const real* v = k + C;                                          // (HS), rows 2 * C apart

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

    size_t split = ((size_t)b * NH + h) * SPLITS + blockIdx.x;
    for (int i = threadIdx.x; i < HS; i += WARPS * WARP_SIZE) {
        float sum = 0.0f;
        for (int key = 0; key < keys; key++) {
            sum += expf(scores[key] - largest) * to_float(v[(size_t)key * 2 * C + i]);
        }
        sums[split * HS + i] = sum;
    }
    if (threadIdx.x == 0) {
        largests[split] = largest;
        totals[split] = total;
    }
}

// Adds up the splits of each head.
extern "C" __global__ void decode_attention(
    real* __restrict__ out, const real* __restrict__ qkv, const real* __restrict__ kv,
    const int* __restrict__ positions, int B, int P, int C, int NH, float* __restrict__ sums,
    float* __restrict__ largests, float* __restrict__ totals) {
    int h = blockIdx.x, b = blockIdx.y, splits = positions[b] / KEYS + 1;
    size_t first = ((size_t)b * NH + h) * SPLITS;
    float largest = -INFINITY, total = 0.0f;
    for (int s = 0; s < splits; s++) {
        largest = fmaxf(largest, largests[first + s]);
    }
    for (int s = 0; s < splits; s++) {
        total += totals[first + s] * expf(largests[first + s] - largest);
    }
    for (int i = threadIdx.x; i < HS; i += WARPS * WARP_SIZE) {
        float sum = 0.0f;
        for (int s = 0; s < splits; s++) {
            sum += sums[(first + s) * HS + i] * expf(largests[first + s] - largest);
        }
        out[(size_t)b * C + h * HS + i] = to_real(sum / total);
    }
}
