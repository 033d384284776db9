#pragma once

// Every row of out (R, N) = the sum of the rows of inp (R, N)
void all_reduce_sum_cpu(double* out, const double* inp, int R, int N) {
    for (int i = 0; i < N; i++) {
        double sum = 0;
        for (int r = 0; r < R; r++) sum += inp[(size_t)r * N + i];
        for (int r = 0; r < R; r++) out[(size_t)r * N + i] = sum;
    }
}
