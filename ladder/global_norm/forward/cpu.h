#pragma once

#include <cmath>

// norm (1) = sqrt(sum of grad^2), grad (N)
void global_norm_forward_cpu(double* norm, const double* grad, int N) {
    double sum = 0;
    for (int i = 0; i < N; i++) sum += grad[i] * grad[i];
    norm[0] = std::sqrt(sum);
}
