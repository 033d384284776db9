// embedding forward, rung 2: one warp per token, coalesced loads and stores
// Before: in rung 1, the lanes of a warp access addresses that lie C apart.
// Change: the lanes of a warp share a token. Neighbouring lanes take neighbouring channels, so the
//         accesses are coalesced.
// Expect: all bytes of a sector are used. The row of a token may lie anywhere, but it is long
//         enough for whole sectors. All lanes load the same token, which is one request.
// Needs:  nothing
// Define: TOKENS = 4
// Launch: embedding_forward<<<ceil_div(B * T, TOKENS), TOKENS * warp>>>
// After:  1
// Left:   loads are 2 or 4 bytes wide -> rung 3.

#include "portable.cuh"

extern "C" __global__ void embedding_forward(
    real* __restrict__ out,          // (B, T, C)
    const int* __restrict__ tokens,  // (B, T)
    const real* __restrict__ wte,    // (V, C)
    const real* __restrict__ wpe,    // (P, C)
    int B, int T, int C, int V, int P) {
    int bt = blockIdx.x * TOKENS + warp_id();  // which token: b * T + t
    if (bt >= B * T) return;  // the last block may have more warps than there are tokens left
    const real* token_row = wte + (size_t)tokens[bt] * C;   // (C)
    const real* position_row = wpe + (size_t)(bt % T) * C;  // (C)
    real* y = out + (size_t)bt * C;                         // (C)
    for (int i = lane_id(); i < C; i += WARP_SIZE) {
        y[i] = to_real(to_float(token_row[i]) + to_float(position_row[i]));
    }
}
