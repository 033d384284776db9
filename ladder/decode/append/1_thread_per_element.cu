// decode append, rung 1: one thread per element
// Before: the NumPy reference.
// Change: one thread copies each of the 2 * C elements of a token, its key and its value, which are
//         neighbours in qkv and in the cache. The position is read from memory, as a recorded graph
//         would freeze it.
// Expect: coalesced accesses. For one token they are a few kilobytes, and the launch takes longer.
//         For the T tokens of a prompt the kernel is bound by memory.
// Needs:  T <= 65535; B <= 65535
// Define: BLOCK = 256
// Launch: decode_append<<<(ceil_div(2 * C, BLOCK), T, B), BLOCK>>>
// Left:   accesses of 2 or 4 bytes -> rung 2.

#include "portable.cuh"

extern "C" __global__ void decode_append(
    real* __restrict__ kv,           // (B, P, 2, C)  key, value
    const real* __restrict__ qkv,    // (B, T, 3, C)
    const int* __restrict__ starts,  // (B)  the position of the first of the T tokens
    int B, int T, int P, int C) {
    int i = blockIdx.x * BLOCK + threadIdx.x, t = blockIdx.y, b = blockIdx.z;
    if (i >= 2 * C) return;  // the last block may have more threads than there are elements left
    size_t from = (size_t)b * T + t, to = (size_t)b * P + starts[b] + t;  // rows
    kv[to * 2 * C + i] = qkv[from * 3 * C + C + i];
}
