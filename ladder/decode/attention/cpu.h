#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <vector>

// out (B, C) = softmax(q . k / sqrt(C / NH)) v for each of NH heads: the query of a text is in
// qkv (B, 3C), keys and values of its positions 0 to positions[b] are in kv (B, P, 2C)
void decode_attention_cpu(
    double* out, const double* qkv, const double* kv, const int* positions, int B, int P, int C,
    int NH) {
    const int width = C / NH;
    std::vector<double> score(P);
    for (int b = 0; b < B; b++) {
        for (int h = 0; h < NH; h++) {
            const double* q = qkv + (size_t)b * 3 * C + h * width;
            const double* k = kv + (size_t)b * P * 2 * C + h * width;
            const double* v = k + C;
            double* result = out + (size_t)b * C + h * width;
            const size_t next = 2 * (size_t)C;
            for (int p = 0; p <= positions[b]; p++) {
                double sum = 0;
                for (int i = 0; i < width; i++) sum += q[i] * k[p * next + i];
                score[p] = sum / std::sqrt(width);
            }
            double largest = *std::max_element(&score[0], &score[positions[b]] + 1), sum = 0;
            for (int p = 0; p <= positions[b]; p++) sum += std::exp(score[p] - largest);
            for (int i = 0; i < width; i++) result[i] = 0;
            for (int p = 0; p <= positions[b]; p++) {
                double prob = std::exp(score[p] - largest) / sum;
                for (int i = 0; i < width; i++) result[i] += prob * v[p * next + i];
            }
        }
    }
}

// Positions in the second half of the window.
void decode_attention_inputs(int* positions, int B, int P, std::mt19937& random) {
    for (int b = 0; b < B; b++) positions[b] = P - 1 - random() % ((P + 1) / 2);
}
