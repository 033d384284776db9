// relu backward: one bit for each element instead of out
// Needs:  N % vector == 0
// Define: BLOCK = 256
// Launch: relu_backward_mask<<<ceil_div(N, BLOCK * 32), BLOCK>>>
// Launch: relu_backward<<<ceil_div(N, BLOCK * vector), BLOCK>>>
// Scratch: uint32 mask[ceil_div(N, 32)]
// After:  2

#include "portable.cuh"

// What a forward pass could store: one bit for each element, 32 of them in a word.
extern "C" __global__ void relu_backward_mask(
    const real* __restrict__ out, int N, unsigned* __restrict__ mask) {
    size_t first = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * 32;
    if (first >= N) return;
    unsigned bits = 0;
    for (int k = 0; k < 32 && first + k < N; k++) {
        bits |= (unsigned)(to_float(out[first + k]) > 0.0f) << k;
    }
    mask[first / 32] = bits;
}

extern "C" __global__ void relu_backward(
    real* __restrict__ dinp,        // (N)
    const real* __restrict__ dout,  // (N)
    int N,
    const unsigned* __restrict__ mask) {  // (N / 32)
    size_t i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * VECTOR;
    if (i >= N) return;  // the last block may have more threads than there are vectors left
    Vec dys = load_vec(dout + i), dxs;
    unsigned bits = mask[i / 32] >> i % 32;
    for (int k = 0; k < VECTOR; k++) {
        dxs[k] = bits >> k & 1 ? dys[k] : to_real(0.0f);
    }
    store_vec(dinp + i, dxs);
}
