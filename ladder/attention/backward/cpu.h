#pragma once

#include <cmath>
#include <cstddef>

#include "attention/forward/cpu.h"

// dqkv (B, T, 3C) from dout (B, T, C), and from qkv, out and lse of the forward pass. Per head of
// C / NH channels, for a query and every key up to it:
//     prob = exp(q . k / sqrt(C / NH) - lse)
//     dscore = prob * (dout . v - dout . out) / sqrt(C / NH)
//     dq += dscore * k        dk += dscore * q        dv += prob * dout
void attention_backward_cpu(
    double* dqkv, const double* dout, const double* qkv, const double* out, const double* lse,
    int B, int T, int C, int NH) {
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
                    double dscore = prob * (dprob - delta) / std::sqrt(width);
                    for (int i = 0; i < width; i++) {
                        dq[t * next + i] += dscore * k[s * next + i];
                        dk[s * next + i] += dscore * q[t * next + i];
                        dv[s * next + i] += prob * dy[i];
                    }
                }
            }
        }
    }
}

// out and lse that belong to qkv.
void attention_backward_inputs(
    const double* qkv, double* out, double* lse, int B, int T, int C, int NH) {
    attention_forward_cpu(out, lse, qkv, B, T, C, NH);
}
