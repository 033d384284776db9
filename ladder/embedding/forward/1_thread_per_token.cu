// embedding forward, rung 1: one thread per token
// Before: the NumPy reference.
// Change: one thread for each of the B * T tokens adds two rows of C channels.
// Expect: far below the roof (the bandwidth of a plain copy). Neighbouring lanes (the threads of a
//         warp) access addresses C apart, so the accesses are not coalesced: a load of a warp
//         touches one 32-byte sector per lane, and uses 2 or 4 bytes of it.
// Needs:  nothing
// Define: BLOCK = 128
// Launch: embedding_forward<<<ceil_div(B * T, BLOCK), BLOCK>>>
// Left:   the lanes of a warp access far-apart addresses -> rung 2.

#include "portable.cuh"

extern "C" __global__ void embedding_forward(
    real* __restrict__ out,          // (B, T, C)
    const int* __restrict__ tokens,  // (B, T)
    const real* __restrict__ wte,    // (V, C)
    const real* __restrict__ wpe,    // (P, C)
    int B, int T, int C, int V, int P) {
    int bt = blockIdx.x * BLOCK + threadIdx.x;  // which token: b * T + t
    if (bt >= B * T) return;  // the last block may have more threads than there are tokens left
    const real* token_row = wte + (size_t)tokens[bt] * C;   // (C)
    const real* position_row = wpe + (size_t)(bt % T) * C;  // (C)
    real* y = out + (size_t)bt * C;                         // (C)
    for (int i = 0; i < C; i++) {
        y[i] = to_real(to_float(token_row[i]) + to_float(position_row[i]));
    }
}
