#pragma once

#include <cmath>

// dinp = dout * gelu'(inp), all (N), for gelu(x) = x / 2 * (1 + tanh(u(x)))
void gelu_backward_cpu(double* dinp, const double* dout, const double* inp, int N) {
    const double scale = std::sqrt(2 / 3.14159265358979323846);
    for (int i = 0; i < N; i++) {
        double x = inp[i];
        double t = std::tanh(scale * (x + 0.044715 * x * x * x));
        double du = scale * (1 + 3 * 0.044715 * x * x);  // du/dx
        dinp[i] = dout[i] * ((1 + t) / 2 + x / 2 * (1 - t * t) * du);
    }
}
