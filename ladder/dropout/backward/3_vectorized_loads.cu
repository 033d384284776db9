// dropout backward, rung 3: vectorized (128-bit) loads and stores
// Before: rung 2 loads its elements one by one, and the loads of a warp are spread out.
// Change: a thread takes VECTOR neighbouring elements: four or eight, those of one or two Philox
//         calls. It moves them with one 16-byte (128-bit) instruction.
// Expect: whole sectors with every instruction. The vector is in flight while the thread computes
//         the random words: close to memory-bound.
// Needs:  N % vector == 0
// Define: BLOCK = 256
// Launch: dropout_backward<<<ceil_div(N, BLOCK * vector), BLOCK>>>
// After:  2
// Left:   only the bytes themselves: the kernel before or after could do this, too (fusion).

#include "philox.cuh"
#include "portable.cuh"

extern "C" __global__ void dropout_backward(
    real* __restrict__ dinp,           // (N)
    const real* __restrict__ dout,     // (N)
    const unsigned* __restrict__ rng,  // (4)  seed low, seed high, step, micro-step
    int N, float p, unsigned stream) {
    size_t i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * VECTOR;
    if (i >= N) return;  // the last block may have more threads than there are vectors left
    unsigned threshold = p * 4294967296.0f;  // p * 2^32: a power of two, so this is exact
    float scale = 1.0f / (1.0f - p);

    Vec xs = load_vec(dout + i), ys;
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
    store_vec(dinp + i, ys);
}
