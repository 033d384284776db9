// dropout forward, rung 3: vectorized (128-bit) loads and stores
// Before: rung 2 loads its elements one by one, and the loads of a warp are spread out.
// Change: a thread takes VECTOR neighbouring elements, and moves them with one 16-byte (128-bit)
//         instruction. In 16 bits these are the eight of one Philox call; in float32 they are four,
//         so two threads make the same call.
// Expect: whole sectors with every instruction. The vector is in flight while the thread computes
//         the random words: close to memory-bound.
// Needs:  N % vector == 0
// Define: BLOCK = 256
// Launch: dropout_forward<<<ceil_div(N, BLOCK * vector), BLOCK>>>
// After:  2
// Left:   only the bytes themselves: the kernel before or after could do this, too (fusion).

#include "philox.cuh"
#include "portable.cuh"

extern "C" __global__ void dropout_forward(
    real* __restrict__ out,            // (N)
    const real* __restrict__ inp,      // (N)
    const unsigned* __restrict__ rng,  // (4)  seed low, seed high, step, micro-step
    int N, float p, unsigned stream) {
    size_t i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * VECTOR;
    if (i >= N) return;  // the last block may have more threads than there are vectors left
    unsigned threshold = fminf(rintf(p * 65536.0f), 65535.0f);  // of 65536 half words
    float scale = 1.0f / (1.0f - threshold / 65536.0f);

    Vec xs = load_vec(inp + i), ys;
    unsigned words[4] = {(unsigned)(i / 8), stream, rng[2], rng[3]};
    philox4x32(words, rng[0], rng[1]);
    if (VECTOR == 4 && i % 8 == 4) words[0] = words[2], words[1] = words[3];  // the second four
#pragma unroll
    for (int k = 0; k < VECTOR; k++) {
        bool keep = half_word(words, k) >= threshold;
        ys[k] = to_real(keep ? to_float(xs[k]) * scale : 0.0f);
    }
    store_vec(out + i, ys);
}
