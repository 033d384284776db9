// decode sample, rung 1: one thread per text
// Before: the NumPy reference.
// Change: one thread goes through the V logits of a text. To keep the top_k largest it finds the
//         least of them by bisection: a float's bits order like a whole number, so 32 passes that
//         each count the larger logits settle one bit after the other. Equal ones are bisected by
//         their index. Then it adds up the exponentials, and adds them up again until the sum
//         exceeds coin times all of it. These sums are in double: fifty thousand terms, added one
//         after the other in float32, are off by more than a token's share, and the token next to
//         the right one would be drawn.
// Expect: far below the roof: one thread waits for each logit in turn. But the token need not go to
//         the host and back, so the steps of a text can be submitted ahead.
// Needs:  nothing
// Define: BLOCK = 32
// Launch: decode_sample<<<ceil_div(B, BLOCK), BLOCK>>>
// Left:   one thread for fifty thousand logits -> rung 2.

#include "portable.cuh"

// A whole number that orders like the float; +0 and -0 are equal.
__device__ __forceinline__ unsigned rank_of(float x) {
    unsigned bits = __float_as_uint(x + 0.0f);
    return bits >> 31 ? ~bits : bits | 0x80000000;
}

extern "C" __global__ void decode_sample(
    int* __restrict__ window,          // (B, P + 1)
    int* __restrict__ positions,       // (B)
    const real* __restrict__ logits,   // (B, Vp)
    const float* __restrict__ coins,   // (B, P)
    int B, int P, int V, int Vp, float temperature, int top_k) {
    int b = blockIdx.x * BLOCK + threadIdx.x;
    if (b >= B) return;
    const real* x = logits + (size_t)b * Vp;  // (V)
    int position = positions[b], next = -1;   // -1: a logit is not finite
    int keep = temperature == 0.0f ? 1 : 0 < top_k && top_k < V ? top_k : V;
    float scale = temperature == 0.0f ? 1.0f : 1.0f / temperature;

    bool finite = true;
    float largest = -INFINITY;
    for (int i = 0; i < V; i++) {
        float logit = to_float(x[i]);
        finite = finite && fabsf(logit) < INFINITY;  // written so that NaN is not
        largest = fmaxf(largest, logit);
    }
    if (finite) {
        unsigned least = 0;  // the rank of the keep-th largest logit
        int beyond = V;      // of logits of this rank, those from this index on are left out
        if (keep < V) {
            for (unsigned bit = 1u << 31; bit > 0; bit /= 2) {
                int larger = 0;
                for (int i = 0; i < V; i++) {
                    larger += rank_of(to_float(x[i])) >= (least | bit);
                }
                if (larger >= keep) least |= bit;
            }
            int low = 0;  // up to `low` there are too few, up to `beyond` there are enough
            while (beyond - low > 1) {
                int middle = (low + beyond) / 2, kept = 0;
                for (int i = 0; i < V; i++) {
                    unsigned rank = rank_of(to_float(x[i]));
                    kept += rank > least || (rank == least && i < middle);
                }
                if (kept >= keep) beyond = middle;
                else low = middle;
            }
        }
        double total = 0.0, sum = 0.0;
        for (int i = 0; i < V; i++) {
            unsigned rank = rank_of(to_float(x[i]));
            if (rank < least || (rank == least && i >= beyond)) continue;
            total += expf((to_float(x[i]) - largest) * scale);
        }
        double target = coins[(size_t)b * P + position] * total;
        for (int i = 0; i < V && sum <= target; i++) {
            unsigned rank = rank_of(to_float(x[i]));
            if (rank < least || (rank == least && i >= beyond)) continue;
            sum += expf((to_float(x[i]) - largest) * scale);
            next = i;
        }
    }
    window[(size_t)b * (P + 1) + position + 1] = next;
    positions[b] = min(position + 1, P - 1);  // a full window stays where it is
}
