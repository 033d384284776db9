#pragma once

#include "matmul/backward_input/cpu.h"
#include "relu/backward/cpu.h"

// dinp (N, C) = dout (N, OC) @ weight (OC, C) where out (N, C) > 0, else 0
void matmul_relu_backward_input_cpu(
    double* dinp, const double* dout, const double* weight, const double* out, int N, int C,
    int OC) {
    matmul_backward_input_cpu(dinp, dout, weight, N, C, OC);
    relu_backward_cpu(dinp, dinp, out, N * C);
}
