#pragma once

#include <cmath>
#include <cstdint>
#include <random>

#include "philox_cpu.h"

// dinp = dout / share where the element's half word is at least the threshold, else 0: both (N)
void dropout_backward_cpu(
    double* dinp, const double* dout, const unsigned* rng, int N, float p, unsigned stream) {
    uint32_t threshold = (uint32_t)std::fmin(std::rint(p * 0x1p16), 0xFFFF);
    double share = 1 - threshold / 0x1p16;
    for (int i = 0; i < N; i++) {
        uint32_t half = random_word_cpu(rng, stream, i / 2) >> i % 2 * 16 & 0xFFFF;
        dinp[i] = half >= threshold ? dout[i] / share : 0;
    }
}

// The random state: (seed low, seed high, step, micro-step).
void dropout_backward_inputs(unsigned* rng, std::mt19937& random) {
    for (int i = 0; i < 4; i++) rng[i] = random();
}
