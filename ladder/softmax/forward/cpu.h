#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>

// probs = exp(logits) / sum(exp(logits)), row by row, both (N, V). The largest logit is subtracted
// first: the result is the same, and exp cannot overflow.
void softmax_forward_cpu(double* probs, const double* logits, int N, int V) {
    for (int n = 0; n < N; n++) {
        const double* x = logits + (size_t)n * V;
        double* p = probs + (size_t)n * V;
        double largest = *std::max_element(x, x + V), sum = 0;
        for (int v = 0; v < V; v++) sum += p[v] = std::exp(x[v] - largest);
        for (int v = 0; v < V; v++) p[v] /= sum;
    }
}
