// embedding backward, rung 3: positions in a kernel of their own, without atomics
// Before: rung 2 adds every gradient to the row of its position by an atomic.
// Change: one kernel for tokens, still with atomics; one for positions, where a thread adds up what
//         its channel of a position receives in the B sequences.
// Expect: half the atomics, and those that met most often are gone; but dout is read twice.
// Needs:  nothing
// Define: TOKENS = 4; BLOCK = 256
// Launch: embedding_backward<<<ceil_div(B * T, TOKENS), TOKENS * warp>>>
// Launch: embedding_backward_positions<<<T, BLOCK>>>
// Deterministic: no, float atomics land in any order
// After:  2
// Left:   frequent tokens still receive their gradients in any order -> rung 4.

#include "portable.cuh"

extern "C" __global__ void embedding_backward(
    float* __restrict__ dwte,        // (V, C)  accumulates
    float* __restrict__ dwpe,        // (P, C)  accumulates
    const real* __restrict__ dout,   // (B, T, C)
    const int* __restrict__ tokens,  // (B, T)
    int B, int T, int C, int V, int P) {
    int bt = blockIdx.x * TOKENS + warp_id();  // which token: b * T + t
    if (bt >= B * T) return;  // the last block may have more warps than there are tokens left
    const real* dy = dout + (size_t)bt * C;            // (C)
    float* token_row = dwte + (size_t)tokens[bt] * C;  // (C)
    for (int i = lane_id(); i < C; i += WARP_SIZE) {
        atomicAdd(&token_row[i], to_float(dy[i]));
    }
}

// A position's gradients lie T rows apart, one in each of the B sequences: a thread adds them up
// for its channel, in order.
extern "C" __global__ void embedding_backward_positions(
    float*, float* __restrict__ dwpe, const real* __restrict__ dout, const int*, int B, int T,
    int C, int V, int P) {
    int t = blockIdx.x;
    for (int i = threadIdx.x; i < C; i += BLOCK) {
        float sum = 0.0f;
        for (int b = 0; b < B; b++) {
            sum += to_float(dout[((size_t)b * T + t) * C + i]);
        }
        dwpe[(size_t)t * C + i] += sum;
    }
}
