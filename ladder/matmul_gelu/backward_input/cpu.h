#pragma once

#include "gelu/backward/cpu.h"
#include "matmul/backward_input/cpu.h"

// dinp (N, C) = (dout (N, OC) @ weight (OC, C)) * gelu'(pre (N, C))
void matmul_gelu_backward_input_cpu(
    double* dinp, const double* dout, const double* weight, const double* pre, int N, int C,
    int OC) {
    matmul_backward_input_cpu(dinp, dout, weight, N, C, OC);
    gelu_backward_cpu(dinp, dinp, pre, N * C);
}
