// matmul_crossentropy backward_input, rung 1: one thread per output
// Before: the NumPy reference.
// Change: as matmul.backward_input rung 1, one thread for each of the N * C elements of dinp. It
//         multiplies its sum by the factor of the row.
// Expect: as there, far below the roof (the roofline ceiling): each multiply-add needs two loads.
//         One multiplication more for each output, of OC multiply-adds.
// Needs:  real in (float32, bfloat16)
// Define: BLOCK = 256
// Launch: matmul_crossentropy_backward_input<<<ceil_div(N * C, BLOCK), BLOCK>>>
// After:  matmul.backward_input 1
// Left:   a product on tensor cores -> 16bit rung 2.

#include "portable.cuh"

extern "C" __global__ void matmul_crossentropy_backward_input(
    real* __restrict__ dinp,            // (N, C)
    const real* __restrict__ exps,      // (N, OC)
    const float* __restrict__ factors,  // (N)
    const real* __restrict__ weight,    // (OC, C)
    int N, int C, int OC) {
    size_t index = (size_t)blockIdx.x * BLOCK + threadIdx.x;  // N * C can exceed an int
    if (index >= (size_t)N * C) return;
    int row = index / C, column = index % C;
    const real* dy = exps + (size_t)row * OC;  // (OC)

    float sum = 0.0f;
    for (int i = 0; i < OC; i++) {
        sum += to_float(dy[i]) * to_float(weight[(size_t)i * C + column]);
    }
    dinp[index] = to_real(sum * factors[row]);
}
