#pragma once

#include "matmul/forward/cpu.h"

// out (N, OC) = inp (N, C) @ weight.T + bias, weight (OC, C), bias (OC)
void decode_linear_cpu(
    double* out, const double* inp, const double* weight, const double* bias, int N, int C,
    int OC) {
    matmul_forward_cpu(out, inp, weight, bias, N, C, OC);
}
