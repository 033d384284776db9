// dropout forward: the loads before the random words
// Define: BLOCK = 256
// Launch: dropout_forward<<<ceil_div(N, BLOCK * 8), BLOCK>>>
// After:  2

#include "philox.cuh"
#include "portable.cuh"

extern "C" __global__ void dropout_forward(
    real* __restrict__ out,            // (N)
    const real* __restrict__ inp,      // (N)
    const unsigned* __restrict__ rng,  // (4)  seed low, seed high, step, micro-step
    int N, float p, unsigned stream) {
    size_t i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * 8;
    unsigned threshold = fminf(rintf(p * 65536.0f), 65535.0f);  // of 65536 half words
    float scale = 1.0f / (1.0f - threshold / 65536.0f);

    float xs[8];
#pragma unroll
    for (int k = 0; k < 8; k++) {
        xs[k] = i + k < N ? to_float(inp[i + k]) : 0.0f;
    }
    unsigned words[4] = {(unsigned)(i / 8), stream, rng[2], rng[3]};
    philox4x32(words, rng[0], rng[1]);
#pragma unroll
    for (int k = 0; k < 8; k++) {
        if (i + k >= N) return;  // the last group of eight may be incomplete
        bool keep = half_word(words, k) >= threshold;
        out[i + k] = to_real(keep ? xs[k] * scale : 0.0f);
    }
}
