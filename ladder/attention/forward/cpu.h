#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

// Causal attention of NH heads of C / NH channels; qkv (B, T, 3C) holds q, k and v side by side.
// Per head, for a query and the keys up to it:
//     score = q . k / sqrt(C / NH)        probs = softmax(score)
//     out (B, T, C) = sum of probs * v        lse (B, NH, T) = log(sum(exp(score)))
void attention_forward_cpu(
    double* out, double* lse, const double* qkv, int B, int T, int C, int NH) {
    const int width = C / NH;           // of a head
    const size_t next = 3 * (size_t)C;  // from a row of qkv to the next
    std::vector<double> score(T);
    for (int b = 0; b < B; b++) {
        for (int h = 0; h < NH; h++) {
            const double* q = qkv + b * T * next + h * width;  // (T, width)
            const double *k = q + C, *v = q + 2 * C;
            for (int t = 0; t < T; t++) {
                for (int s = 0; s <= t; s++) {
                    double sum = 0;
                    for (int i = 0; i < width; i++) sum += q[t * next + i] * k[s * next + i];
                    score[s] = sum / std::sqrt(width);
                }
                double largest = *std::max_element(&score[0], &score[t] + 1), sum = 0;
                for (int s = 0; s <= t; s++) sum += std::exp(score[s] - largest);
                lse[((size_t)b * NH + h) * T + t] = largest + std::log(sum);
                double* result = out + ((size_t)b * T + t) * C + h * width;  // (width)
                for (int i = 0; i < width; i++) result[i] = 0;
                for (int s = 0; s <= t; s++) {
                    double prob = std::exp(score[s] - largest) / sum;
                    for (int i = 0; i < width; i++) result[i] += prob * v[s * next + i];
                }
            }
        }
    }
}
