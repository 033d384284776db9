#pragma once

#include <cstddef>

// dweight (OC, C) += dout.T @ inp, dout (N, OC), inp (N, C)
void matmul_backward_weight_cpu(
    double* dweight, const double* dout, const double* inp, int N, int C, int OC) {
    for (int n = 0; n < N; n++) {
        for (int o = 0; o < OC; o++) {
            double factor = dout[(size_t)n * OC + o];
            for (int c = 0; c < C; c++) {
                dweight[(size_t)o * C + c] += factor * inp[(size_t)n * C + c];
            }
        }
    }
}
