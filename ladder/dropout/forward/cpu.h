#pragma once

#include <cstdint>
#include <random>

#include "philox_cpu.h"

// out = inp / (1 - p) where the element's random word is at least p * 2^32, else 0: both (N)
void dropout_forward_cpu(
    double* out, const double* inp, const unsigned* rng, int N, float p, unsigned stream) {
    uint32_t threshold = (uint32_t)(p * 0x1p32);
    for (int i = 0; i < N; i++) {
        bool keep = random_word_cpu(rng, stream, i) >= threshold;
        out[i] = keep ? inp[i] / (1 - (double)p) : 0;
    }
}

// The random state: (seed low, seed high, step, micro-step).
void dropout_forward_inputs(unsigned* rng, std::mt19937& random) {
    for (int i = 0; i < 4; i++) rng[i] = random();
}
