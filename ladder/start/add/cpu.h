#pragma once

// c = a + b, all (N)
void start_add_cpu(double* c, const double* a, const double* b, int N) {
    for (int i = 0; i < N; i++) c[i] = a[i] + b[i];
}
