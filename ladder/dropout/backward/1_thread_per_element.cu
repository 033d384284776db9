// dropout backward, rung 1: one thread per element, counter-based RNG (Philox)
// Before: the NumPy reference.
// Change: one thread for each of the N elements draws 16 random bits for its element. Philox, a
//         counter-based random number generator (RNG), makes them from the index of the element and
//         the seed, so no generator state is stored. The forward pass does not store the mask; it
//         is computed again.
// Expect: bound by arithmetic: seven rounds of Philox make bits for eight elements, and seven
//         eighths of them are discarded.
// Needs:  nothing
// Define: BLOCK = 256
// Launch: dropout_backward<<<ceil_div(N, BLOCK), BLOCK>>>
// Left:   eight neighbouring threads compute the same four words -> rung 2.

#include "philox.cuh"
#include "portable.cuh"

extern "C" __global__ void dropout_backward(
    real* __restrict__ dinp,           // (N)
    const real* __restrict__ dout,     // (N)
    const unsigned* __restrict__ rng,  // (4)  seed low, seed high, step, micro-step
    int N, float p, unsigned stream) {
    size_t i = (size_t)blockIdx.x * BLOCK + threadIdx.x;
    if (i >= N) return;  // the last block may have more threads than there are elements left
    unsigned threshold = fminf(rintf(p * 65536.0f), 65535.0f);  // of 65536 half words
    float scale = 1.0f / (1.0f - threshold / 65536.0f);

    unsigned words[4] = {(unsigned)(i / 8), stream, rng[2], rng[3]};
    philox4x32(words, rng[0], rng[1]);
    // Not words[i % 8 / 2]: an array with a run-time index cannot be kept in registers.
    unsigned even = i & 4 ? words[2] : words[0], odd = i & 4 ? words[3] : words[1];
    unsigned half = (i & 2 ? odd : even) >> i % 2 * 16 & 0xFFFF;
    dinp[i] = to_real(half >= threshold ? to_float(dout[i]) * scale : 0.0f);
}
