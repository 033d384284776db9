// embedding backward, rung 1: one thread per token, global atomics
// Before: the NumPy reference.
// Change: one thread for each of the B * T tokens adds its C gradients to the row of the token and
//         to the row of its position. Many tokens may add to the same row, so the additions are
//         atomic: read, add and write in one step.
// Expect: far below the roof (the bandwidth of a plain copy). Neighbouring lanes access addresses C
//         apart, which is not coalesced: a load of a warp touches one 32-byte sector per lane, and
//         its atomics go to as many sectors.
// Needs:  nothing
// Define: BLOCK = 128
// Launch: embedding_backward<<<ceil_div(B * T, BLOCK), BLOCK>>>
// Deterministic: no, float atomics land in any order
// Left:   the lanes of a warp access far-apart addresses -> rung 2.

#include "portable.cuh"

extern "C" __global__ void embedding_backward(
    float* __restrict__ dwte,        // (V, C)  accumulates
    float* __restrict__ dwpe,        // (P, C)  accumulates
    const real* __restrict__ dout,   // (B, T, C)
    const int* __restrict__ tokens,  // (B, T)
    int B, int T, int C, int V, int P) {
    int bt = blockIdx.x * BLOCK + threadIdx.x;  // which token: b * T + t
    if (bt >= B * T) return;  // the last block may have more threads than there are tokens left
    const real* dy = dout + (size_t)bt * C;             // (C)
    float* token_row = dwte + (size_t)tokens[bt] * C;   // (C)
    float* position_row = dwpe + (size_t)(bt % T) * C;  // (C)
    for (int i = 0; i < C; i++) {
        atomicAdd(&token_row[i], to_float(dy[i]));
        atomicAdd(&position_row[i], to_float(dy[i]));
    }
}
