#pragma once

#include <cmath>
#include <cstddef>

// With norm = (inp - mean) * rstd and dnorm = dout * weight, row by row:
//     dinp = rstd * (dnorm - average(dnorm) - norm * average(dnorm * norm))      (N, C)
//     dweight += dout * norm        dbias += dout                                (C)
void layernorm_backward_cpu(
    double* dinp, double* dweight, double* dbias, const double* dout, const double* inp,
    const double* weight, const double* mean, const double* rstd, int N, int C) {
    for (int n = 0; n < N; n++) {
        const double *dy = dout + (size_t)n * C, *x = inp + (size_t)n * C;
        double a = 0, b = 0;  // averages of dnorm and of dnorm * norm
        for (int c = 0; c < C; c++) {
            double norm = (x[c] - mean[n]) * rstd[n];
            a += dy[c] * weight[c] / C;
            b += dy[c] * weight[c] * norm / C;
            dweight[c] += dy[c] * norm;
            dbias[c] += dy[c];
        }
        for (int c = 0; c < C; c++) {
            double norm = (x[c] - mean[n]) * rstd[n];
            dinp[(size_t)n * C + c] = rstd[n] * (dy[c] * weight[c] - a - norm * b);
        }
    }
}

// mean and rstd that belong to inp: kernels may rely on a normalized row having the average 0.
void layernorm_backward_inputs(const double* inp, double* mean, double* rstd, int N, int C) {
    for (int n = 0; n < N; n++) {
        const double* x = inp + (size_t)n * C;
        double sum = 0, squares = 0;
        for (int c = 0; c < C; c++) sum += x[c];
        mean[n] = sum / C;
        for (int c = 0; c < C; c++) squares += (x[c] - mean[n]) * (x[c] - mean[n]);
        rstd[n] = 1 / std::sqrt(squares / C + 1e-5);
    }
}
