// decode embedding, rung 1: one thread per channel
// Before: the NumPy reference.
// Change: a block takes BLOCK channels of one text; each thread adds two elements. The position is
//         read from memory: a number in the launch would be frozen in a recorded graph.
// Expect: one launch, for a few kilobytes. Neighbouring lanes access neighbouring channels
//         (coalesced). Each thread waits three times in a row: for the position, for the token,
//         for the rows.
// Needs:  B <= 65535
// Define: BLOCK = 128
// Launch: decode_embedding<<<(ceil_div(C, BLOCK), B), BLOCK>>>
// Left:   the launch itself, which takes longer than the additions.

#include "portable.cuh"

extern "C" __global__ void decode_embedding(
    real* __restrict__ out,             // (B, C)
    const int* __restrict__ window,     // (B, P + 1)
    const int* __restrict__ positions,  // (B)
    const real* __restrict__ wte,       // (V, C)
    const real* __restrict__ wpe,       // (P, C)
    int B, int P, int C, int V) {
    int i = blockIdx.x * BLOCK + threadIdx.x, b = blockIdx.y;
    if (i >= C) return;  // the last block may have more threads than there are channels left
    int position = positions[b];
    int token = max(window[(size_t)b * (P + 1) + position], 0);  // -1: none could be drawn
    float sum = to_float(wte[(size_t)token * C + i]) + to_float(wpe[(size_t)position * C + i]);
    out[(size_t)b * C + i] = to_real(sum);
}
