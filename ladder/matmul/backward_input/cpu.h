#pragma once

#include <cstddef>

// dinp (N, C) = dout (N, OC) @ weight (OC, C)
void matmul_backward_input_cpu(
    double* dinp, const double* dout, const double* weight, int N, int C, int OC) {
    for (int n = 0; n < N; n++) {
        double* row = dinp + (size_t)n * C;
        for (int c = 0; c < C; c++) row[c] = 0;
        for (int o = 0; o < OC; o++) {
            double factor = dout[(size_t)n * OC + o];
            for (int c = 0; c < C; c++) row[c] += factor * weight[(size_t)o * C + c];
        }
    }
}
