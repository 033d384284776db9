// dropout forward, rung 2: four elements per thread, one Philox call
// Before: rung 1 computes four random words for every element, and uses one.
// Change: a thread takes the four neighbouring elements that its four words belong to.
// Expect: a quarter of the arithmetic. But the elements of neighbouring lanes are now four apart,
//         so the accesses are only partly coalesced. Each of the four loads touches all sectors of
//         the warp, and the L1 cache must keep them from one load to the next.
// Needs:  nothing
// Define: BLOCK = 256
// Launch: dropout_forward<<<ceil_div(N, BLOCK * 4), BLOCK>>>
// After:  1
// Left:   four loads where one would do -> rung 3.

#include "philox.cuh"
#include "portable.cuh"

extern "C" __global__ void dropout_forward(
    real* __restrict__ out,            // (N)
    const real* __restrict__ inp,      // (N)
    const unsigned* __restrict__ rng,  // (4)  seed low, seed high, step, micro-step
    int N, float p, unsigned stream) {
    size_t i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * 4;
    unsigned threshold = p * 4294967296.0f;  // p * 2^32: a power of two, so this is exact
    float scale = 1.0f / (1.0f - p);

    unsigned words[4] = {(unsigned)(i / 4), stream, rng[2], rng[3]};
    philox4x32(words, rng[0], rng[1]);
#pragma unroll
    for (int k = 0; k < 4; k++) {
        if (i + k >= N) return;  // the last group of four may be incomplete
        out[i + k] = to_real(words[k] >= threshold ? to_float(inp[i + k]) * scale : 0.0f);
    }
}
