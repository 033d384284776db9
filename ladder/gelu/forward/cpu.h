#pragma once

#include <cmath>

// out = inp / 2 * (1 + tanh(sqrt(2 / pi) * (inp + 0.044715 inp^3))), both (N)
void gelu_forward_cpu(double* out, const double* inp, int N) {
    const double scale = std::sqrt(2 / 3.14159265358979323846);
    for (int i = 0; i < N; i++) {
        double x = inp[i];
        out[i] = x / 2 * (1 + std::tanh(scale * (x + 0.044715 * x * x * x)));
    }
}
