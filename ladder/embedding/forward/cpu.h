#pragma once

#include <cstddef>
#include <random>

// out[b, t] = wte[tokens[b, t]] + wpe[t]: out (B, T, C), tokens (B, T), wte (V, C), wpe (P, C)
void embedding_forward_cpu(
    double* out, const int* tokens, const double* wte, const double* wpe, int B, int T, int C) {
    for (int b = 0; b < B; b++) {
        for (int t = 0; t < T; t++) {
            size_t row = (size_t)b * T + t;
            for (int c = 0; c < C; c++) {
                out[row * C + c] = wte[(size_t)tokens[row] * C + c] + wpe[(size_t)t * C + c];
            }
        }
    }
}

// Token ids within the vocabulary.
void embedding_forward_inputs(int* tokens, int B, int T, int V, std::mt19937& random) {
    for (int i = 0; i < B * T; i++) tokens[i] = random() % V;
}
