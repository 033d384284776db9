#pragma once

#include "matmul/forward/cpu.h"
#include "relu/forward/cpu.h"

// out (N, OC) = max(inp (N, C) @ weight.T + bias, 0), weight (OC, C), bias (OC)
void matmul_relu_forward_cpu(
    double* out, const double* inp, const double* weight, const double* bias, int N, int C,
    int OC) {
    matmul_forward_cpu(out, inp, weight, bias, N, C, OC);
    relu_forward_cpu(out, out, N * OC);
}
