#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>

// losses (N) = log(sum(exp(logits))) - logits[target]; logits (N, Vp) become dlogits in place:
// dloss * (softmax(logits) - 1 at the target). Columns V to Vp are padding, and become 0.
void crossentropy_fused_cpu(
    double* losses, double* logits, const int* targets, const double* dloss, int N, int V,
    int Vp) {
    for (int n = 0; n < N; n++) {
        double* x = logits + (size_t)n * Vp;
        double largest = *std::max_element(x, x + V), sum = 0;
        for (int v = 0; v < V; v++) sum += std::exp(x[v] - largest);
        losses[n] = largest + std::log(sum) - x[targets[n]];
        for (int v = 0; v < V; v++) x[v] = dloss[0] * std::exp(x[v] - largest) / sum;
        x[targets[n]] -= dloss[0];
        for (int v = V; v < Vp; v++) x[v] = 0;
    }
}

// Targets within the vocabulary, and the weight of a row in the mean loss.
void crossentropy_fused_inputs(
    int* targets, double* dloss, int N, int V, std::mt19937& random) {
    for (int n = 0; n < N; n++) targets[n] = random() % V;
    dloss[0] = 1.0 / N;
}
