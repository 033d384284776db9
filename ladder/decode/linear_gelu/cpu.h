#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

#include "gelu/forward/cpu.h"
#include "matmul/forward/cpu.h"

// out (N, OC) = gelu(inp (N, C) @ weight.T + bias), weight (OC, C), bias (OC)
void decode_linear_gelu_cpu(
    double* out, const double* inp, const double* weight, const double* bias, int N, int C,
    int OC) {
    std::vector<double> pre((size_t)N * OC);
    matmul_forward_cpu(pre.data(), inp, weight, bias, N, C, OC);
    gelu_forward_cpu(out, pre.data(), N * OC);
}

// A weight that makes the product about as large as 1: gelu bends between -3 and 3.
void decode_linear_gelu_inputs(double* weight, int C, int OC) {
    for (size_t i = 0; i < (size_t)OC * C; i++) weight[i] /= std::sqrt(C);
}
