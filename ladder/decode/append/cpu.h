#pragma once

#include <cstddef>
#include <random>

// kv[b, starts[b] + t] = the key and the value of qkv[b, t]: kv (B, P, 2C), qkv (B, T, 3C),
// starts (B)
void decode_append_cpu(
    double* kv, const double* qkv, const int* starts, int B, int T, int P, int C) {
    for (int b = 0; b < B; b++) {
        for (int t = 0; t < T; t++) {
            double* to = kv + ((size_t)b * P + starts[b] + t) * 2 * C;
            const double* from = qkv + ((size_t)b * T + t) * 3 * C + C;
            for (int i = 0; i < 2 * C; i++) to[i] = from[i];
        }
    }
}

// Positions from which T tokens fit into the window.
void decode_append_inputs(int* starts, int B, int T, int P, std::mt19937& random) {
    for (int b = 0; b < B; b++) starts[b] = random() % (P - T + 1);
}
