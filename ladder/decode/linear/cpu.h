#pragma once

#include <cstddef>

// out (N, OC) = inp (N, C) @ weight.T + bias, weight (OC, C), bias (OC)
void decode_linear_cpu(
    double* out, const double* inp, const double* weight, const double* bias, int N, int C,
    int OC) {
    for (int n = 0; n < N; n++) {
        for (int o = 0; o < OC; o++) {
            double sum = bias[o];
            for (int c = 0; c < C; c++) sum += inp[(size_t)n * C + c] * weight[(size_t)o * C + c];
            out[(size_t)n * OC + o] = sum;
        }
    }
}
