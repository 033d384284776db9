#pragma once

#include <cmath>
#include <cstddef>
#include <random>

#include "attention_dropout/forward/cpu.h"

// dqkv (B, T, 3C) from dout (B, T, C), and from qkv, out and lse of the forward pass. Per head of
// C / NH channels, for a query and every key up to it:
//     prob = exp(q . k / sqrt(C / NH) - lse)        mask = 1 / share where kept, else 0
//     dscore = prob * (mask * dout . v - dout . out) / sqrt(C / NH)
//     dq += dscore * k        dk += dscore * q        dv += mask * prob * dout
void attention_dropout_backward_cpu(
    double* dqkv, const double* dout, const double* qkv, const double* out, const double* lse,
    const unsigned* rng, int B, int T, int C, int NH, float p, unsigned stream) {
    const int width = C / NH;           // of a head
    const size_t next = 3 * (size_t)C;  // from a row of qkv or dqkv to the next
    for (size_t i = 0; i < B * T * next; i++) dqkv[i] = 0;
    for (int b = 0; b < B; b++) {
        for (int h = 0; h < NH; h++) {
            const double* q = qkv + b * T * next + h * width;  // (T, width)
            const double *k = q + C, *v = q + 2 * C;
            double *dq = dqkv + b * T * next + h * width, *dk = dq + C, *dv = dq + 2 * C;
            for (int t = 0; t < T; t++) {
                const double* dy = dout + ((size_t)b * T + t) * C + h * width;  // (width)
                const double* y = out + ((size_t)b * T + t) * C + h * width;
                double delta = 0;
                for (int i = 0; i < width; i++) delta += dy[i] * y[i];
                for (int s = 0; s <= t; s++) {
                    double score = 0, dprob = 0;
                    for (int i = 0; i < width; i++) {
                        score += q[t * next + i] * k[s * next + i];
                        dprob += dy[i] * v[s * next + i];
                    }
                    double prob =
                        std::exp(score / std::sqrt(width) - lse[((size_t)b * NH + h) * T + t]);
                    bool kept = attention_keeps_cpu(rng, stream, p, b * NH + h, t, s, T);
                    double mask = kept ? attention_scale_cpu(p) : 0;
                    double dscore = prob * (mask * dprob - delta) / std::sqrt(width);
                    for (int i = 0; i < width; i++) {
                        dq[t * next + i] += dscore * k[s * next + i];
                        dk[s * next + i] += dscore * q[t * next + i];
                        dv[s * next + i] += mask * prob * dy[i];
                    }
                }
            }
        }
    }
}

// The random state, and out and lse that belong to qkv under its mask.
void attention_dropout_backward_inputs(
    const double* qkv, double* out, double* lse, unsigned* rng, int B, int T, int C, int NH,
    float p, unsigned stream, std::mt19937& random) {
    attention_dropout_forward_inputs(rng, random);
    attention_dropout_forward_cpu(out, lse, qkv, rng, B, T, C, NH, p, stream);
}
