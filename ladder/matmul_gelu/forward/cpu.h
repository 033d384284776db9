#pragma once

#include <cmath>
#include <cstddef>

#include "gelu/forward/cpu.h"
#include "matmul/forward/cpu.h"

// pre (N, OC) = inp (N, C) @ weight.T + bias, weight (OC, C), bias (OC); out (N, OC) = gelu(pre)
void matmul_gelu_forward_cpu(
    double* out, double* pre, const double* inp, const double* weight, const double* bias, int N,
    int C, int OC) {
    matmul_forward_cpu(pre, inp, weight, bias, N, C, OC);
    gelu_forward_cpu(out, pre, N * OC);
}

// A weight that makes pre about as large as 1: gelu bends between -3 and 3.
void matmul_gelu_forward_inputs(double* weight, int C, int OC) {
    for (size_t i = 0; i < (size_t)OC * C; i++) weight[i] /= std::sqrt(C);
}
