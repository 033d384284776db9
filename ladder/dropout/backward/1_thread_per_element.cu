// dropout backward, rung 1: one thread per element, counter-based RNG (Philox)
// Before: the NumPy reference.
// Change: one thread for each of the N elements computes the random word of its element. Philox, a
//         counter-based random number generator (RNG), makes it from the index of the element and
//         the seed, so no generator state is stored. The forward pass does not store the mask; it
//         is computed again.
// Expect: bound by arithmetic: ten rounds of Philox make four words, and three of them are
//         discarded.
// Needs:  nothing
// Define: BLOCK = 256
// Launch: dropout_backward<<<ceil_div(N, BLOCK), BLOCK>>>
// Left:   four neighbouring threads compute the same four words -> rung 2.

#include "philox.cuh"
#include "portable.cuh"

extern "C" __global__ void dropout_backward(
    real* __restrict__ dinp,           // (N)
    const real* __restrict__ dout,     // (N)
    const unsigned* __restrict__ rng,  // (4)  seed low, seed high, step, micro-step
    int N, float p, unsigned stream) {
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= N) return;  // the last block may have more threads than there are elements left
    unsigned threshold = p * 4294967296.0f;  // p * 2^32: a power of two, so this is exact
    float scale = 1.0f / (1.0f - p);

    unsigned words[4] = {(unsigned)(i / 4), stream, rng[2], rng[3]};
    philox4x32(words, rng[0], rng[1]);
    // Not words[i % 4]: an array with a run-time index cannot be kept in registers.
    unsigned even = i & 2 ? words[2] : words[0], odd = i & 2 ? words[3] : words[1];
    unsigned word = i & 1 ? odd : even;
    dinp[i] = to_real(word >= threshold ? to_float(dout[i]) * scale : 0.0f);
}
