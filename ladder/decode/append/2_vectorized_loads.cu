// decode append, rung 2: vectorized (128-bit) loads and stores
// Before: rung 1 moves 2 or 4 bytes with an instruction.
// Change: a thread moves VECTOR neighbouring elements with one 16-byte (128-bit) instruction.
// Expect: 4 to 8 times fewer threads and instructions for the same sectors: less time for a whole
//         prompt, none for a single token.
// Needs:  T <= 65535; B <= 65535; C % vector == 0
// Define: BLOCK = 128
// Launch: decode_append<<<(ceil_div(2 * C, BLOCK * vector), T, B), BLOCK>>>
// After:  1
// Left:   a launch for a single token, and qkv has been written only to be copied: the kernel that
//         computes it could write the cache.

#include "portable.cuh"

extern "C" __global__ void decode_append(
    real* __restrict__ kv,           // (B, P, 2, C)  key, value
    const real* __restrict__ qkv,    // (B, T, 3, C)
    const int* __restrict__ starts,  // (B)  the position of the first of the T tokens
    int B, int T, int P, int C) {
    int i = (blockIdx.x * BLOCK + threadIdx.x) * VECTOR, t = blockIdx.y, b = blockIdx.z;
    if (i >= 2 * C) return;  // the last block may have more threads than there are vectors left
    size_t from = (size_t)b * T + t, to = (size_t)b * P + starts[b] + t;  // rows
    store_vec(kv + to * 2 * C + i, load_vec(qkv + from * 3 * C + C + i));
}
