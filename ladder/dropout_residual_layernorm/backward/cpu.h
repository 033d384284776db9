#pragma once

#include <cstddef>
#include <random>

#include "dropout/backward/cpu.h"
#include "residual_layernorm/backward/cpu.h"

// dinp (N, C) += layernorm's gradient of dout (N, C), dbranch (N, C) = dropout's gradient of dinp;
// dweight, dbias (C) accumulate over the rows
void dropout_residual_layernorm_backward_cpu(
    double* dinp, double* dbranch, double* dweight, double* dbias, const double* dout,
    const double* inp, const double* weight, const double* mean, const double* rstd,
    const unsigned* rng, int N, int C, float p, unsigned stream) {
    residual_layernorm_backward_cpu(dinp, dweight, dbias, dout, inp, weight, mean, rstd, N, C);
    dropout_backward_cpu(dbranch, dinp, rng, N * C, p, stream);
}

void dropout_residual_layernorm_backward_inputs(
    const double* inp, double* mean, double* rstd, unsigned* rng, int N, int C,
    std::mt19937& random) {
    residual_layernorm_backward_inputs(inp, mean, rstd, N, C);
    dropout_backward_inputs(rng, random);
}
