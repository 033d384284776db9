#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "philox_cpu.h"

// Whether dropout keeps the probability of a query and a key of one head (b * NH + h), as
// attention_mask.cuh numbers them: four elements of a 16 x 16 tile share a counter.
bool attention_keeps_cpu(
    const unsigned* rng, unsigned stream, float p, int head, int query, int key, int T) {
    const size_t size = (T + 15) / 16 * 8;  // groups of four in a row of a head's matrix
    const size_t row = query / 16 * 8 + query % 8, column = key / 16 * 8 + key % 8;
    const size_t group = (head * size + row) * size + column;
    const size_t element = group * 4 + query / 8 % 2 * 2 + key / 8 % 2;
    return random_word_cpu(rng, stream, element) >= (uint32_t)(p * 0x1p32);
}

// Causal attention with dropout of NH heads of C / NH channels; qkv (B, T, 3C) holds q, k and v side
// by side. Per head, for a query and the keys up to it:
//     score = q . k / sqrt(C / NH)        probs = softmax(score)
//     out (B, T, C) = sum of probs * v / (1 - p) over the keys that are kept
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
                    double prob = std::exp(score[s] - largest) / sum / (1 - (double)p);
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
