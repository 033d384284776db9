// Stochastic rounding to `real`: to one of the two neighbours of a float, up or down, the likelier
// the nearer, so that the expected result is the float itself (Gupta, Agrawal, Gopalakrishnan and
// Narayanan, "Deep Learning with Limited Numerical Precision", ICML 2015). The same bits as
// reference/rounding.py.
#pragma once

#include "philox.cuh"
#include "portable.cuh"

// The random words of elements 4 * quad to 4 * quad + 3; rng (4): seed low, high, step, micro-step.
__device__ __forceinline__ uint4 random_words(
    const unsigned* rng, unsigned stream, unsigned quad) {
    unsigned words[4] = {quad, stream, rng[2], rng[3]};
    philox4x32(words, rng[0], rng[1]);
    return make_uint4(words[0], words[1], words[2], words[3]);
}

// The one of element i, which is word i % 4. Not an array: indexed at run time, it cannot be in
// registers.
__device__ __forceinline__ unsigned random_word(const unsigned* rng, unsigned stream, size_t i) {
    uint4 words = random_words(rng, stream, (unsigned)(i / 4));
    unsigned even = i & 2 ? words.z : words.x, odd = i & 2 ? words.w : words.y;
    return i & 1 ? odd : even;
}

#if defined(REAL_FLOAT32)
__device__ __forceinline__ real round_at_random(float x, unsigned) { return x; }
#else

// The size of the number with these 16 bits.
__device__ __forceinline__ float size_of(unsigned short bits) {
    return fabsf(to_float(*reinterpret_cast<real*>(&bits)));
}

// `word` is uniform over all 32-bit words. What overflows when rounded to nearest, and NaN, stays.
__device__ __forceinline__ real round_at_random(float x, unsigned word) {
    real nearest = to_real(x);
    if (!(fabsf(to_float(nearest)) < INFINITY)) return nearest;
    // Sign and size: one more is the next number away from 0, even across powers of two.
    unsigned short bits = *reinterpret_cast<unsigned short*>(&nearest);
    if (size_of(bits) > fabsf(x)) bits -= 1;  // now the neighbour towards 0
    // All exact: a part of the gap, a power of two, and 24 random bits in [0, 1).
    float part = fabsf(x) - size_of(bits), gap = size_of(bits + 1) - size_of(bits);
    if (part > gap * ((word >> 8) * 0x1p-24f)) bits += 1;
    return *reinterpret_cast<real*>(&bits);
}

#endif
