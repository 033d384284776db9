#pragma once

#include <cstddef>
#include <random>

// dwte[tokens[b, t]] += dout[b, t] and dwpe[t] += dout[b, t]: dwte (V, C), dwpe (P, C),
// dout (B, T, C), tokens (B, T)
void embedding_backward_cpu(
    double* dwte, double* dwpe, const double* dout, const int* tokens, int B, int T, int C) {
    for (int b = 0; b < B; b++) {
        for (int t = 0; t < T; t++) {
            size_t row = (size_t)b * T + t;
            for (int c = 0; c < C; c++) {
                dwte[(size_t)tokens[row] * C + c] += dout[row * C + c];
                dwpe[(size_t)t * C + c] += dout[row * C + c];
            }
        }
    }
}

// Token ids within the vocabulary; by chance some occur several times.
void embedding_backward_inputs(int* tokens, int B, int T, int V, std::mt19937& random) {
    for (int i = 0; i < B * T; i++) tokens[i] = random() % V;
}
