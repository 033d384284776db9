// dropout forward, rung 2: eight elements per thread, one Philox call
// Before: rung 1 computes four random words for every element, and uses half of one.
// Change: a thread takes the eight neighbouring elements that its four words belong to.
// Expect: an eighth of the arithmetic. But the elements of neighbouring lanes are now eight apart,
//         so the accesses are only partly coalesced. Each of the eight loads touches all sectors of
//         the warp, and the L1 cache must keep them from one load to the next.
// Needs:  nothing
// Define: BLOCK = 256
// Launch: dropout_forward<<<ceil_div(N, BLOCK * 8), BLOCK>>>
// Pays:   no: what is saved in arithmetic is lost again, because a thread waits for eight loads,
//         one after the other, and each of them touches eight times as many sectors.
// After:  1
// Left:   eight loads where one would do -> rung 3.

#include "philox.cuh"
#include "portable.cuh"

extern "C" __global__ void dropout_forward(
    real* __restrict__ out,            // (N)
    const real* __restrict__ inp,      // (N)
    const unsigned* __restrict__ rng,  // (4)  seed low, seed high, step, micro-step
    int N, float p, unsigned stream) {
    size_t i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * 8;
    unsigned threshold = fminf(rintf(p * 65536.0f), 65535.0f);  // of 65536 half words
    float scale = 1.0f / (1.0f - threshold / 65536.0f);

    unsigned words[4] = {(unsigned)(i / 8), stream, rng[2], rng[3]};
    philox4x32(words, rng[0], rng[1]);
#pragma unroll
    for (int k = 0; k < 8; k++) {
        if (i + k >= N) return;  // the last group of eight may be incomplete
        bool keep = half_word(words, k) >= threshold;
        out[i + k] = to_real(keep ? to_float(inp[i + k]) * scale : 0.0f);
    }
}
