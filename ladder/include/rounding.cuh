// Stochastic rounding to `real`: a float is rounded up or down at random, and the nearer neighbour
// is the more likely one, so that the expected result is the float itself (Gupta, Agrawal,
// Gopalakrishnan and Narayanan, "Deep Learning with Limited Numerical Precision", ICML 2015). Gives
// the same bits as reference/rounding.py.
#pragma once

#include "philox.cuh"
#include "portable.cuh"

// Four random words, one for each of the elements 4 * quad to 4 * quad + 3. rng (4): seed low, seed
// high, step, micro-step.
__device__ __forceinline__ uint4 random_words(
    const unsigned* rng, unsigned stream, unsigned quad) {
    unsigned words[4] = {quad, stream, rng[2], rng[3]};
    philox4x32(words, rng[0], rng[1]);
    return make_uint4(words[0], words[1], words[2], words[3]);
}

// The random word of element i: word i % 4 of its four. Selected by comparisons, because an array
// with an index known only at run time cannot be kept in registers.
__device__ __forceinline__ unsigned random_word(const unsigned* rng, unsigned stream, size_t i) {
    uint4 words = random_words(rng, stream, (unsigned)(i / 4));
    unsigned even = i & 2 ? words.z : words.x, odd = i & 2 ? words.w : words.y;
    return i & 1 ? odd : even;
}

#if defined(REAL_FLOAT32)
__device__ __forceinline__ real round_at_random(float x, unsigned) { return x; }
#else

// The absolute value of the real with these 16 bits.
__device__ __forceinline__ float size_of(unsigned short bits) {
    return fabsf(to_float(*reinterpret_cast<real*>(&bits)));
}

// Rounds x to one of its two neighbours. `word` is a uniform random 32-bit word. Where rounding to
// nearest overflows to infinity, or x is NaN, it returns that.
__device__ __forceinline__ real round_at_random(float x, unsigned word) {
    real nearest = to_real(x);
    if (!(fabsf(to_float(nearest)) < INFINITY)) return nearest;
    // The bits are sign and magnitude: bits + 1 is the next real away from 0, even at a power of
    // two.
    unsigned short bits = *reinterpret_cast<unsigned short*>(&nearest);
    if (size_of(bits) > fabsf(x)) bits -= 1;  // now the neighbour towards 0
    // All exact: the part of the gap, the gap (a power of two), and 24 random bits in [0, 1).
    float part = fabsf(x) - size_of(bits), gap = size_of(bits + 1) - size_of(bits);
    if (part > gap * ((word >> 8) * 0x1p-24f)) bits += 1;
    return *reinterpret_cast<real*>(&bits);
}

#endif
