#pragma once

#include <cmath>
#include <cstddef>
#include <random>

#include "softmax/forward/cpu.h"

// losses (N) = -log(probs[target]), row by row of probs (N, V)
void crossentropy_forward_cpu(
    double* losses, const double* probs, const int* targets, int N, int V) {
    for (int n = 0; n < N; n++) losses[n] = -std::log(probs[(size_t)n * V + targets[n]]);
}

// Rows of probabilities, and targets within the vocabulary.
void crossentropy_forward_inputs(
    double* probs, int* targets, int N, int V, std::mt19937& random) {
    softmax_forward_cpu(probs, probs, N, V);
    for (int n = 0; n < N; n++) targets[n] = random() % V;
}
