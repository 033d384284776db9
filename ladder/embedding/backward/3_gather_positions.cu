// embedding backward, rung 3: gather instead of scatter for positions
// Before: rung 2 adds every gradient to the row of its position with an atomic (a scatter).
// Change: two kernels: one for tokens, still with atomics, and one for positions. In the second, a
//         thread loads what its channel of a position receives from the B sequences, and adds it (a
//         gather).
// Expect: half the atomics, without those that collide most; but dout is read twice.
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

// The gradients of a position lie T rows apart in dout (B, T, C), one in each of the B sequences. A
// thread adds them, in order, to its channel of dwpe (P, C).
extern "C" __global__ void embedding_backward_positions(
    float* __restrict__ dwpe, const real* __restrict__ dout, int B, int T, int C, int V, int P) {
    int t = blockIdx.x;
    for (int i = threadIdx.x; i < C; i += BLOCK) {
        float sum = 0.0f;
        for (int b = 0; b < B; b++) {
            sum += to_float(dout[((size_t)b * T + t) * C + i]);
        }
        dwpe[(size_t)t * C + i] += sum;
    }
}
