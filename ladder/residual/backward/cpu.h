#pragma once

// dinp += dout, both (N)
void residual_backward_cpu(double* dinp, const double* dout, int N) {
    for (int i = 0; i < N; i++) dinp[i] += dout[i];
}
