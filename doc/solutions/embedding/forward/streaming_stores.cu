// embedding forward: results leave the caches at once
// Needs:  C % vector == 0
// Define: TOKENS = 4
// Launch: embedding_forward<<<ceil_div(B * T, TOKENS), TOKENS * warp>>>
// After:  3

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
    for (int i = lane_id() * VECTOR; i < C; i += WARP_SIZE * VECTOR) {
        Vec a = load_vec(token_row + i), b = load_vec(position_row + i), sum;
        for (int k = 0; k < VECTOR; k++) {
            sum[k] = to_real(to_float(a[k]) + to_float(b[k]));
        }
        store_vec_streaming(y + i, sum);
    }
}
