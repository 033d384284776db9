#pragma once

#include <algorithm>
#include <cstddef>
#include <random>

// out[b] = wte[window[b, p]] + wpe[p], p = positions[b]: out (B, C), window (B, P + 1),
// positions (B), wte (V, C), wpe (P, C)
void decode_embedding_cpu(
    double* out, const int* window, const int* positions, const double* wte, const double* wpe,
    int B, int P, int C) {
    for (int b = 0; b < B; b++) {
        size_t position = positions[b];
        size_t token = std::max(window[b * ((size_t)P + 1) + position], 0);
        for (int c = 0; c < C; c++) {
            out[(size_t)b * C + c] = wte[token * C + c] + wpe[position * C + c];
        }
    }
}

// Token ids within the vocabulary, and positions within the window.
void decode_embedding_inputs(
    int* window, int* positions, int B, int P, int V, std::mt19937& random) {
    for (int i = 0; i < B * (P + 1); i++) window[i] = random() % V;
    for (int b = 0; b < B; b++) positions[b] = random() % P;
}
