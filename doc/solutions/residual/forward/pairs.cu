// residual forward: pairs of elements
// Needs:  N % 2 == 0
// Define: BLOCK = 256
// Launch: residual_forward<<<ceil_div(N, BLOCK * 2), BLOCK>>>
// After:  1

#include "portable.cuh"

struct alignas(2 * sizeof(real)) Pair { real at[2]; };

extern "C" __global__ void residual_forward(
    real* __restrict__ out,         // (N)
    const real* __restrict__ inp1,  // (N)
    const real* __restrict__ inp2,  // (N)
    int N) {
    size_t i = ((size_t)blockIdx.x * BLOCK + threadIdx.x) * 2;
    if (i >= N) return;  // the last block may have more threads than there are elements left
    Pair a = *reinterpret_cast<const Pair*>(inp1 + i), b = *reinterpret_cast<const Pair*>(inp2 + i);
    for (int k = 0; k < 2; k++) {
        a.at[k] = to_real(to_float(a.at[k]) + to_float(b.at[k]));
    }
    *reinterpret_cast<Pair*>(out + i) = a;
}
