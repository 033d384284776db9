// decode embedding: vectorized (128-bit) loads
// Needs:  B <= 65535; C % vector == 0
// Define: BLOCK = 128
// Launch: decode_embedding<<<(ceil_div(C, BLOCK * vector), B), BLOCK>>>
// After:  1

#include "portable.cuh"

extern "C" __global__ void decode_embedding(
    real* __restrict__ out,             // (B, C)
    const int* __restrict__ window,     // (B, P + 1)
    const int* __restrict__ positions,  // (B)
    const real* __restrict__ wte,       // (V, C)
    const real* __restrict__ wpe,       // (P, C)
    int B, int P, int C, int V) {
    int i = (blockIdx.x * BLOCK + threadIdx.x) * VECTOR, b = blockIdx.y;
    if (i >= C) return;  // the last block may have more threads than there are vectors left
    int position = positions[b];
    int token = max(window[(size_t)b * (P + 1) + position], 0);  // -1: none could be drawn
    Vec x = load_vec(wte + (size_t)token * C + i), y = load_vec(wpe + (size_t)position * C + i);
    for (int k = 0; k < VECTOR; k++) {
        x[k] = to_real(to_float(x[k]) + to_float(y[k]));
    }
    store_vec(out + (size_t)b * C + i, x);
}
