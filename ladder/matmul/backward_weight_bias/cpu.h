#pragma once

#include "matmul/backward_bias/cpu.h"
#include "matmul/backward_weight/cpu.h"

// dweight (OC, C) += dout.T @ inp, dbias (OC) += the sum over the rows of dout; dout (N, OC),
// inp (N, C)
void matmul_backward_weight_bias_cpu(
    double* dweight, double* dbias, const double* dout, const double* inp, int N, int C, int OC) {
    matmul_backward_weight_cpu(dweight, dout, inp, N, C, OC);
    matmul_backward_bias_cpu(dbias, dout, N, OC);
}
