#pragma once

#include <cmath>
#include <cstddef>

// out = (inp - mean) * rstd * weight + bias, row by row: out, inp (N, C); mean, rstd (N); weight,
// bias (C). mean is a row's average, rstd = 1 / sqrt(its variance + 1e-5).
void layernorm_forward_cpu(
    double* out, double* mean, double* rstd, const double* inp, const double* weight,
    const double* bias, int N, int C) {
    for (int n = 0; n < N; n++) {
        const double* x = inp + (size_t)n * C;
        double sum = 0, squares = 0;
        for (int c = 0; c < C; c++) sum += x[c];
        mean[n] = sum / C;
        for (int c = 0; c < C; c++) squares += (x[c] - mean[n]) * (x[c] - mean[n]);
        rstd[n] = 1 / std::sqrt(squares / C + 1e-5);
        for (int c = 0; c < C; c++) {
            out[(size_t)n * C + c] = (x[c] - mean[n]) * rstd[n] * weight[c] + bias[c];
        }
    }
}
