#pragma once

#include <cstddef>

#include "softmax/forward/cpu.h"

// dlogits = probs * (dprobs - sum(dprobs * probs)), row by row, all (N, V)
void softmax_backward_cpu(
    double* dlogits, const double* dprobs, const double* probs, int N, int V) {
    for (int n = 0; n < N; n++) {
        const double *dp = dprobs + (size_t)n * V, *p = probs + (size_t)n * V;
        double sum = 0;
        for (int v = 0; v < V; v++) sum += dp[v] * p[v];
        for (int v = 0; v < V; v++) dlogits[(size_t)n * V + v] = p[v] * (dp[v] - sum);
    }
}

// Rows of probabilities.
void softmax_backward_inputs(double* probs, int N, int V) {
    softmax_forward_cpu(probs, probs, N, V);
}
