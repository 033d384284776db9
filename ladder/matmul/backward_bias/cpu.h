#pragma once

#include <cstddef>

// dbias (OC) += the sum over the rows of dout (N, OC)
void matmul_backward_bias_cpu(double* dbias, const double* dout, int N, int OC) {
    for (int n = 0; n < N; n++) {
        for (int o = 0; o < OC; o++) dbias[o] += dout[(size_t)n * OC + o];
    }
}
