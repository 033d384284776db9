// decode sample, rung 2: one block per text, logits in shared memory
// Before: rung 1 has one thread, which reads all logits from memory in each pass.
// Change: a block of WARPS warps takes one text and copies its logits to shared memory once. Each
//         warp has a segment of neighbouring tokens. Counts and sums are reduced over the block in
//         a fixed order. The segments' sums tell in which one the drawn token lies, and its warp
//         finds it, WARP_SIZE tokens at a time.
// Expect: some microseconds without top_k. With it, 32 passes over shared memory, and more only
//         where logits are equal.
// Needs:  B <= 65535; V * sizeof_real + 512 <= shared_bytes
// Define: WARPS = 1024 // warp; SEGMENT = ceil_div(V, WARPS)
// Launch: decode_sample<<<B, WARPS * warp, V * sizeof_real>>>
// After:  1
// Rewrite: passes over segments in place of loops over the row
// Left:   one SM (streaming multiprocessor) works, and the others wait.

#include "portable.cuh"

// A whole number that orders like the float; +0 and -0 are equal.
__device__ __forceinline__ unsigned rank_of(float x) {
    unsigned bits = __float_as_uint(x + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000;
}

// The sum over all threads of the block, the same bits in each.
__device__ __forceinline__ float block_sum(float value, float (&of_warp)[WARPS]) {
    __syncthreads();  // the last sum has been read before it is overwritten
    value = warp_sum(value);
    if (lane_id() == 0) of_warp[warp_id()] = value;
    __syncthreads();  // all warps have left their sums before they are added up
    float sum = 0.0f;
    for (int w = 0; w < WARPS; w++) {
        sum += of_warp[w];
    }
    return sum;
}

extern "C" __global__ void __launch_bounds__(WARPS * WARP_SIZE) decode_sample(
    int* __restrict__ window,          // (B, P + 1)
    int* __restrict__ positions,       // (B)
    const real* __restrict__ logits,   // (B, Vp)
    const float* __restrict__ coins,   // (B, P)
    int B, int P, int V, int Vp, float temperature, int top_k) {
    extern __shared__ real x[];  // (V)
    __shared__ float of_warp[WARPS], largest_of[WARPS];
    int b = blockIdx.x, lane = lane_id();
    int begin = min(warp_id() * SEGMENT, V), end = min(begin + SEGMENT, V);  // of this warp
    int position = positions[b];
    int keep = temperature == 0.0f ? 1 : 0 < top_k && top_k < V ? top_k : V;
    float scale = temperature == 0.0f ? 1.0f : 1.0f / temperature;

    float largest = -INFINITY, broken = 0.0f;
    for (int i = begin + lane; i < end; i += WARP_SIZE) {
        x[i] = logits[(size_t)b * Vp + i];
        float logit = to_float(x[i]);
        if (!(fabsf(logit) < INFINITY)) broken = 1.0f;  // written so that NaN is broken
        largest = fmaxf(largest, logit);
    }
    largest = warp_max(largest);
    if (lane == 0) largest_of[warp_id()] = largest;
    broken = block_sum(broken, of_warp);  // its barriers: the largest are there, too
    for (int w = 0; w < WARPS; w++) {
        largest = fmaxf(largest, largest_of[w]);
    }

    unsigned least = 0;  // the rank of the keep-th largest logit
    int beyond = V;      // of logits of this rank, those from this index on are left out
    if (keep < V) {
        for (unsigned bit = 1u << 31; bit > 0; bit /= 2) {
            float larger = 0.0f;  // counts are exact in float32 up to 2^24
            for (int i = begin + lane; i < end; i += WARP_SIZE) {
                larger += rank_of(to_float(x[i])) >= (least | bit);
            }
            if (block_sum(larger, of_warp) >= keep) least |= bit;
        }
        float enough = 0.0f;
        for (int i = begin + lane; i < end; i += WARP_SIZE) {
            enough += rank_of(to_float(x[i])) >= least;
        }
        int low = block_sum(enough, of_warp) == keep ? V : 0;  // V: no equal ones to leave out
        while (beyond - low > 1) {  // up to `low` there are too few, up to `beyond` enough
            int middle = (low + beyond) / 2;
            float kept = 0.0f;
            for (int i = begin + lane; i < end; i += WARP_SIZE) {
                unsigned rank = rank_of(to_float(x[i]));
                kept += rank > least || (rank == least && i < middle);
            }
            if (block_sum(kept, of_warp) >= keep) beyond = middle;
            else low = middle;
        }
    }
    auto weight = [&](int i) {  // of a token in the draw
        unsigned rank = rank_of(to_float(x[i]));
        bool kept = rank > least || (rank == least && i < beyond);
        return kept ? expf((to_float(x[i]) - largest) * scale) : 0.0f;
    };
    float own = 0.0f;
    for (int i = begin + lane; i < end; i += WARP_SIZE) {
        own += weight(i);
    }
    float target = block_sum(own, of_warp) * coins[(size_t)b * P + position];

    int drawing = -1;    // the warp whose segment holds the token: the last one with any weight
    float before = 0.0f;  // the sum of the segments before it
    for (int w = 0; w < WARPS; w++) {
        if (drawing >= 0 && before + of_warp[drawing] > target) break;
        if (of_warp[w] == 0.0f) continue;
        if (drawing >= 0) before += of_warp[drawing];
        drawing = w;
    }
    if (warp_id() == drawing && broken == 0.0f) {
        int row = begin, from = begin;  // `from`: where the last row with any weight begins
        float sum = before, of_row = 0.0f;
        for (; row < end && sum + of_row <= target; row += WARP_SIZE) {
            float all = warp_sum(row + lane < end ? weight(row + lane) : 0.0f);
            if (all == 0.0f) continue;
            sum += of_row;
            of_row = all;
            from = row;
        }
        if (lane == 0) {
            int next = from;
            for (int i = from; i < min(from + WARP_SIZE, end) && sum <= target; i++) {
                if (weight(i) == 0.0f) continue;
                sum += weight(i);
                next = i;
            }
            window[(size_t)b * (P + 1) + position + 1] = next;
        }
    }
    if (threadIdx.x == 0) {
        if (broken > 0.0f) window[(size_t)b * (P + 1) + position + 1] = -1;
        positions[b] = min(position + 1, P - 1);  // a full window stays where it is
    }
}
