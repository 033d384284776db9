#pragma once

#include <cstddef>
#include <random>

#include "layernorm/forward/cpu.h"

// residual = inp1 + inp2, out = layernorm of residual: all (N, C)
void residual_layernorm_forward_cpu(
    double* residual, double* out, double* mean, double* rstd, const double* inp1,
    const double* inp2, const double* weight, const double* bias, int N, int C) {
    for (size_t i = 0; i < (size_t)N * C; i++) residual[i] = inp1[i] + inp2[i];
    layernorm_forward_cpu(out, mean, rstd, residual, weight, bias, N, C);
}

// Multiples of 1/32 from -2 to 2: every real type holds their sums exactly. So it makes no
// difference that a kernel normalizes the sum as it is stored.
void residual_layernorm_forward_inputs(
    double* inp1, double* inp2, int N, int C, std::mt19937& random) {
    for (size_t i = 0; i < (size_t)N * C; i++) {
        inp1[i] = ((int)(random() % 129) - 64) / 32.0;
        inp2[i] = ((int)(random() % 129) - 64) / 32.0;
    }
}
