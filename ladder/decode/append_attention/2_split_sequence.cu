// decode append_attention, rung 2: append inside the split over the sequence
// Before: in rung 1, one kernel writes the new token's key and value, and the next one reads them.
//         So does decode.attention rung 4, which reads all keys and values from the cache.
// Change: the kernels of decode.attention rung 4, with the append. The split that holds the
//         position takes this key and value from qkv and writes them into the cache. No other block
//         accesses them, so there is no race.
// Expect: one launch less, and no wait for what has just been written.
// Needs:  NH <= 65535; B <= 65535; HS % vector == 0; warp % LANES == 0
// Define: HS = C // NH; LANES = max(1, HS // vector); WARPS = 4; GROUPS = WARPS * warp // LANES;
//         EACH = 4; KEYS = EACH * GROUPS; SPLITS = ceil_div(P, KEYS)
// Launch: decode_append_attention_split<<<(SPLITS, NH, B), WARPS * warp>>>
// Launch: decode_append_attention<<<(NH, B), WARPS * warp>>>
// Scratch: float32 sums[B, NH, SPLITS, HS]; float32 largests[B, NH, SPLITS];
//         float32 totals[B, NH, SPLITS]
// After:  decode.attention 4
// Left:   the second kernel, which starts when the last block of the first has ended -> rung 3.

#include "portable.cuh"

extern "C" __global__ void decode_append_attention_split(
    real* __restrict__ out,             // (B, NH, HS)
    real* __restrict__ kv,              // (B, P, 2, NH, HS)  keys and values of all tokens
    const real* __restrict__ qkv,       // (B, 3, NH, HS)  of the new token
    const int* __restrict__ positions,  // (B)  of the new token: the last key that it sees
    int B, int P, int C, int NH,
    float* __restrict__ sums,           // (B, NH, SPLITS, HS)  weights @ v of a split
    float* __restrict__ largests,       // (B, NH, SPLITS)  the largest score of a split
    float* __restrict__ totals) {       // (B, NH, SPLITS)  the sum of its weights
    __shared__ float sum_of[WARPS][HS], largest_of[WARPS], total_of[WARPS];
    int h = blockIdx.y, b = blockIdx.z, start = blockIdx.x * KEYS;
    int keys = min(positions[b] + 1 - start, KEYS);
    if (keys <= 0) return;  // the split is beyond the position; the whole block returns
    int group = threadIdx.x / LANES, i = threadIdx.x % LANES * VECTOR;  // i: first channel
    const real* q = qkv + (size_t)b * 3 * C + h * HS;               // (HS)
    real* k = kv + ((size_t)b * P + start) * 2 * C + h * HS;        // (HS), rows 2 * C apart
    real* v = k + C;                                                // (HS), rows 2 * C apart
    int fresh = positions[b] - start;  // the new token's key, if this split has it

    Vec ks[EACH], vs[EACH];  // of keys group, group + GROUPS, ...
#pragma unroll
    for (int r = 0; r < EACH; r++) {
        size_t row = (size_t)(group + r * GROUPS) * 2 * C;
        ks[r] = vs[r] = Vec{};  // keys beyond the position
        if (group + r * GROUPS == fresh) {
            ks[r] = load_vec(q + C + i);
            vs[r] = load_vec(q + 2 * C + i);
            store_vec(k + row + i, ks[r]);
            store_vec(v + row + i, vs[r]);
        } else if (group + r * GROUPS < keys) {
            ks[r] = load_vec(k + row + i);
            vs[r] = load_vec(v + row + i);
        }
    }
    Vec qs = load_vec(q + i);
    float weights[EACH], largest = -INFINITY, total = 0.0f;
#pragma unroll
    for (int r = 0; r < EACH; r++) {
        float product = 0.0f;
        for (int c = 0; c < VECTOR; c++) {
            product += to_float(qs[c]) * to_float(ks[r][c]);
        }
        for (int distance = 1; distance < LANES; distance *= 2) {  // over the lanes of a key
            product += shuffle_xor(product, distance);
        }
        weights[r] = group + r * GROUPS < keys ? product * rsqrtf(HS) : -INFINITY;
        largest = fmaxf(largest, weights[r]);
    }
    largest = warp_max(largest);
    float sum[VECTOR] = {};
#pragma unroll
    for (int r = 0; r < EACH; r++) {
        // A warp without any key has -INFINITY as its largest score, and no difference to it.
        float weight = group + r * GROUPS < keys ? expf(weights[r] - largest) : 0.0f;
        total += weight;
        for (int c = 0; c < VECTOR; c++) {
            sum[c] += weight * to_float(vs[r][c]);
        }
    }
    for (int distance = LANES; distance < WARP_SIZE; distance *= 2) {  // over the warp's groups
        total += shuffle_xor(total, distance);
        for (int c = 0; c < VECTOR; c++) {
            sum[c] += shuffle_xor(sum[c], distance);
        }
    }
    if (lane_id() < LANES) {
        for (int c = 0; c < VECTOR; c++) {
            sum_of[warp_id()][i + c] = sum[c];
        }
    }
    if (lane_id() == 0) {
        largest_of[warp_id()] = largest;
        total_of[warp_id()] = total;
    }
    __syncthreads();  // all warps have left their sums before they are added up

    largest = -INFINITY;
    for (int w = 0; w < WARPS; w++) {
        largest = fmaxf(largest, largest_of[w]);
    }
    size_t split = ((size_t)b * NH + h) * SPLITS + blockIdx.x;
    for (int c = threadIdx.x; c < HS; c += WARPS * WARP_SIZE) {
        float all = 0.0f;
        for (int w = 0; w < WARPS; w++) {
            all += sum_of[w][c] * expf(largest_of[w] - largest);
        }
        sums[split * HS + c] = all;
    }
    if (threadIdx.x == 0) {
        total = 0.0f;
        for (int w = 0; w < WARPS; w++) {
            total += total_of[w] * expf(largest_of[w] - largest);
        }
        largests[split] = largest;
        totals[split] = total;
    }
}

// Adds up the splits of each head.
extern "C" __global__ void decode_append_attention(
    real* __restrict__ out, real* __restrict__ kv, const real* __restrict__ qkv,
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
