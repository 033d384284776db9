// layernorm forward, rung 1: one thread per row
// Before: the NumPy reference.
// Change: one thread for each of the N rows. It reads its C channels three times.
// Expect: far below the roof (the bandwidth of a plain copy). Neighbouring lanes (the threads of a
//         warp) read addresses C apart, so the accesses are not coalesced: a load of a warp touches
//         one 32-byte sector per lane, and uses 2 or 4 bytes of it.
// Needs:  nothing
// Define: BLOCK = 128
// Launch: layernorm_forward<<<ceil_div(N, BLOCK), BLOCK>>>
// Left:   the lanes of a warp read far-apart addresses -> rung 2.

#include "portable.cuh"

constexpr float EPS = 1e-5f;  // keeps rstd finite where a row is constant

extern "C" __global__ void layernorm_forward(
    real* __restrict__ out,           // (N, C)
    float* __restrict__ mean,         // (N)
    float* __restrict__ rstd,         // (N)  1 / standard deviation
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (C)
    const real* __restrict__ bias,    // (C)
    int N, int C) {
    int row = blockIdx.x * BLOCK + threadIdx.x;
    if (row >= N) return;  // the last block may have more threads than there are rows left
    const real* x = inp + (size_t)row * C;  // (C)
    real* y = out + (size_t)row * C;        // (C)

    float sum = 0.0f;
    for (int i = 0; i < C; i++) {
        sum += to_float(x[i]);
    }
    float m = sum / C;

    float squares = 0.0f;
    for (int i = 0; i < C; i++) {
        float centred = to_float(x[i]) - m;
        squares += centred * centred;
    }
    float r = rsqrtf(squares / C + EPS);

    for (int i = 0; i < C; i++) {
        float normalised = (to_float(x[i]) - m) * r;
        y[i] = to_real(normalised * to_float(weight[i]) + to_float(bias[i]));
    }
    mean[row] = m;
    rstd[row] = r;
}
