// embedding forward, rung 3: vectorized (128-bit) loads and stores
// Before: in rung 2, one instruction moves 2 or 4 bytes per lane.
// Change: a lane takes VECTOR neighbouring channels, and moves them with one 16-byte (128-bit)
//         instruction.
// Expect: 4 to 8 times fewer memory instructions for the same sectors, and more bytes in flight. A
//         warp needs them, because it must wait for its token before it can load the row.
// Needs:  C % vector == 0
// Define: TOKENS = 4
// Launch: embedding_forward<<<ceil_div(B * T, TOKENS), TOKENS * warp>>>
// After:  2
// Left:   wpe is loaded B times, although it should come from the L2 cache after the first time.

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
        store_vec(y + i, sum);
    }
}
