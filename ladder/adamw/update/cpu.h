#pragma once

#include <algorithm>
#include <cmath>
#include <random>

// One step of AdamW on weight, m, v, master and grad, all (N); norm (1) is the length of the whole
// gradient. hyper (9): learning rate, beta1, beta2, eps, weight decay, clip (0: none), 1 - beta1^t,
// 1 - beta2^t, and what undoes a loss scale. weight is given as it is before it is rounded.
void adamw_update_cpu(
    double* weight, double* m, double* v, double* master, const double* grad, const double* norm,
    const double* hyper, int N, float decay) {
    double lr = hyper[0], beta1 = hyper[1], beta2 = hyper[2], eps = hyper[3], clip = hyper[5];
    double scale = hyper[8];
    if (clip > 0) scale *= std::min(1.0, clip / (norm[0] * scale + 1e-6));
    for (int i = 0; i < N; i++) {
        double g = grad[i] * scale;
        m[i] = beta1 * m[i] + (1 - beta1) * g;
        v[i] = beta2 * v[i] + (1 - beta2) * g * g;
        double step = m[i] / hyper[6] / (std::sqrt(v[i] / hyper[7]) + eps);
        master[i] -= lr * (step + hyper[4] * decay * master[i]);
        weight[i] = master[i];
    }
}

// A state as it is after three steps: v is an average of squares, hence not negative.
void adamw_update_inputs(
    double* weight, double* v, const double* master, double* norm, double* hyper, unsigned* rng,
    int N, std::mt19937& random) {
    const double third_step[9] = {
        1e-3, 0.9, 0.95, 1e-8, 0.1, 1.0, 1 - std::pow(0.9f, 3.0), 1 - std::pow(0.95f, 3.0), 1.0};
    for (int i = 0; i < N; i++) {
        weight[i] = master[i];
        v[i] *= v[i];
    }
    norm[0] = 2.5;
    for (int i = 0; i < 9; i++) hyper[i] = third_step[i];
    for (int i = 0; i < 4; i++) rng[i] = random();
}
