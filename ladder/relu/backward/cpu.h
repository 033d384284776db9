#pragma once

// dinp = dout where out > 0, else 0; all (N)
void relu_backward_cpu(double* dinp, const double* dout, const double* out, int N) {
    for (int i = 0; i < N; i++) dinp[i] = out[i] > 0 ? dout[i] : 0;
}

// Here and there the 0 where the function has its corner.
void relu_backward_inputs(double* out, int N) {
    for (int i = 0; i < N; i += 7) out[i] = 0;
}
