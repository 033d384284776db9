// embedding backward, rung 2: one warp per token, coalesced atomics
// Before: in rung 1, the lanes of a warp access addresses that lie C apart.
// Change: the lanes of a warp share a token. Neighbouring lanes take neighbouring channels, so
//         loads and atomics are coalesced.
// Expect: full sectors, and one atomic request per warp for many channels. There are still two
//         atomics for every gradient, and the row of a position receives B of them at about the
//         same time.
// Needs:  nothing
// Define: TOKENS = 4
// Launch: embedding_backward<<<ceil_div(B * T, TOKENS), TOKENS * warp>>>
// Deterministic: no, float atomics land in any order
// After:  1
// Left:   the gradients of a position lie at known addresses and need no atomics -> rung 3.

#include "portable.cuh"

extern "C" __global__ void embedding_backward(
    float* __restrict__ dwte,        // (V, C)  accumulates
    float* __restrict__ dwpe,        // (P, C)  accumulates
    const real* __restrict__ dout,   // (B, T, C)
    const int* __restrict__ tokens,  // (B, T)
    int B, int T, int C, int V, int P) {
    int bt = blockIdx.x * TOKENS + warp_id();  // which token: b * T + t
    if (bt >= B * T) return;  // the last block may have more warps than there are tokens left
    const real* dy = dout + (size_t)bt * C;             // (C)
    float* token_row = dwte + (size_t)tokens[bt] * C;   // (C)
    float* position_row = dwpe + (size_t)(bt % T) * C;  // (C)
    for (int i = lane_id(); i < C; i += WARP_SIZE) {
        atomicAdd(&token_row[i], to_float(dy[i]));
        atomicAdd(&position_row[i], to_float(dy[i]));
    }
}
