#pragma once

// out = max(inp, 0), both (N)
void relu_forward_cpu(double* out, const double* inp, int N) {
    for (int i = 0; i < N; i++) out[i] = inp[i] < 0 ? 0 : inp[i];
}

// Here and there the 0 where the function has its corner.
void relu_forward_inputs(double* inp, int N) {
    for (int i = 0; i < N; i += 7) inp[i] = 0;
}
