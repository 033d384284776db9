#pragma once

#include <cstddef>
#include <random>

#include "softmax/forward/cpu.h"

// dprobs (N, V) = -dloss / probs at the target of the row, 0 elsewhere
void crossentropy_backward_cpu(
    double* dprobs, const double* probs, const int* targets, const double* dloss, int N, int V) {
    for (int n = 0; n < N; n++) {
        for (int v = 0; v < V; v++) {
            size_t i = (size_t)n * V + v;
            dprobs[i] = v == targets[n] ? -dloss[0] / probs[i] : 0;
        }
    }
}

// Rows of probabilities, targets within the vocabulary, and the weight of a row in the mean loss.
void crossentropy_backward_inputs(
    double* probs, int* targets, double* dloss, int N, int V, std::mt19937& random) {
    softmax_forward_cpu(probs, probs, N, V);
    for (int n = 0; n < N; n++) targets[n] = random() % V;
    dloss[0] = 1.0 / N;
}
