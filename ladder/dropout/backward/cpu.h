#pragma once

#include <random>

#include "dropout/forward/cpu.h"

// dinp = dout / share under the mask of the forward pass, drawn again: both (N)
void dropout_backward_cpu(
    double* dinp, const double* dout, const unsigned* rng, int N, float p, unsigned stream) {
    dropout_forward_cpu(dinp, dout, rng, N, p, stream);
}

// The random state: (seed low, seed high, step, micro-step).
void dropout_backward_inputs(unsigned* rng, std::mt19937& random) {
    dropout_forward_inputs(rng, random);
}
