#pragma once

#include <cstddef>
#include <random>
#include <vector>

#include "dropout/forward/cpu.h"
#include "residual_layernorm/forward/cpu.h"

// residual = inp1 + dropout(inp2), out = layernorm of residual: all (N, C)
void dropout_residual_layernorm_forward_cpu(
    double* residual, double* out, double* mean, double* rstd, const double* inp1,
    const double* inp2, const double* weight, const double* bias, const unsigned* rng, int N, int C,
    float p, unsigned stream) {
    std::vector<double> kept((size_t)N * C);  // inp2 under the mask
    dropout_forward_cpu(kept.data(), inp2, rng, N * C, p, stream);
    residual_layernorm_forward_cpu(
        residual, out, mean, rstd, inp1, kept.data(), weight, bias, N, C);
}

// Rows whose sums every real type holds exactly (at p = 1/2, which doubles inp2), so that it makes
// no difference that a kernel normalizes the sum as it is stored; and the random state.
void dropout_residual_layernorm_forward_inputs(
    double* inp1, double* inp2, unsigned* rng, int N, int C, std::mt19937& random) {
    residual_layernorm_forward_inputs(inp1, inp2, N, C, random);
    for (size_t i = 0; i < (size_t)N * C; i++) inp2[i] /= 2;
    dropout_forward_inputs(rng, random);
}
