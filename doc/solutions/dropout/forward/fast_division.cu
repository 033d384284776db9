// dropout forward: the scale by a fast division
// Needs:  N % vector == 0
// Define: BLOCK = 256
// Launch: dropout_forward<<<ceil_div(N, BLOCK * vector), BLOCK>>>
// After:  3

#include "philox.cuh"
#include "portable.cuh"

extern "C" __global__ void dropout_forward(
    real* __restrict__ out,            // (N)
    const real* __restrict__ inp,      // (N)
    const unsigned* __restrict__ rng,  // (4)  seed low, seed high, step, micro-step
    int N, float p, unsigned stream) {
    size_t i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * VECTOR;
    if (i >= N) return;  // the last block may have more threads than there are vectors left
    unsigned threshold = p * 4294967296.0f;  // p * 2^32: a power of two, so this is exact
    float scale = __fdividef(1.0f, 1.0f - p);

    Vec xs = load_vec(inp + i), ys;
#pragma unroll
    for (int first = 0; first < VECTOR; first += 4) {
        unsigned words[4] = {(unsigned)((i + first) / 4), stream, rng[2], rng[3]};
        philox4x32(words, rng[0], rng[1]);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float x = to_float(xs[first + k]);
            ys[first + k] = to_real(words[k] >= threshold ? x * scale : 0.0f);
        }
    }
    store_vec(out + i, ys);
}
