#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "philox_cpu.h"

// Bytes below it drop their element: p * 256, rounded.
double attention_threshold_cpu(float p) { return std::min(std::rint(p * 256), 255.0f); }

// 1 over the share of the probabilities that is kept.
double attention_scale_cpu(float p) { return 256 / (256 - attention_threshold_cpu(p)); }

// Whether dropout keeps the probability of a query and a key of one head (b * NH + h), as
// attention_mask.cuh numbers them: 16 elements of a 16 x 16 tile share a counter.
bool attention_keeps_cpu(
    const unsigned* rng, unsigned stream, float p, int head, int query, int key, int T) {
    const size_t size = (T + 15) / 16 * 4;  // groups of 16 in a row of a head's matrix
    const size_t row = query / 16 * 4 + query % 8 / 2, column = key / 16 * 4 + key % 8 / 2;
    const size_t group = (head * size + row) * size + column;
    const uint32_t word = random_word_cpu(rng, stream, group * 4 + query % 2 * 2 + key % 2);
    const int byte = query / 8 % 2 * 2 + key / 8 % 2;
    return (word >> (8 * byte) & 255) >= attention_threshold_cpu(p);
}

// Causal attention with dropout of NH heads of C / NH channels; qkv (B, T, 3C) holds q, k and v side
// by side. Per head, for a query and the keys up to it:
//     score = q . k / sqrt(C / NH)        probs = softmax(score)
//     out (B, T, C) = sum of probs * v over the keys that are kept / the share that is kept
//     lse (B, NH, T) = log(sum(exp(score))) over all of them
void attention_dropout_forward_cpu(
    double* out, double* lse, const double* qkv, const unsigned* rng, int B, int T, int C, int NH,
    float p, unsigned stream) {
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
                    if (!attention_keeps_cpu(rng, stream, p, b * NH + h, t, s, T)) continue;
                    double prob = std::exp(score[s] - largest) / sum * attention_scale_cpu(p);
                    for (int i = 0; i < width; i++) result[i] += prob * v[s * next + i];
                }
            }
        }
    }
}

// The random state: (seed low, seed high, step, micro-step).
void attention_dropout_forward_inputs(unsigned* rng, std::mt19937& random) {
    for (int i = 0; i < 4; i++) rng[i] = random();
}
