// embedding backward: a block for each token
// Define: BLOCK = 64
// Launch: embedding_backward_tokens<<<V, BLOCK>>>
// Launch: embedding_backward_positions<<<T, BLOCK>>>
#include "portable.cuh"

extern "C" __global__ void embedding_backward_tokens(
    float* __restrict__ dwte, float* __restrict__ dwpe,           // (V, C), (P, C)  accumulate
    const real* __restrict__ dout, const int* __restrict__ tokens,  // (B, T, C), (B, T)
    int B, int T, int C, int V, int P) {
    int token = blockIdx.x;
    for (int i = threadIdx.x; i < C; i += BLOCK) {
        float sum = 0.0f;
        for (int bt = 0; bt < B * T; bt++) {
            if (tokens[bt] == token) sum += to_float(dout[(size_t)bt * C + i]);
        }
        dwte[(size_t)token * C + i] = sum;
    }
}

extern "C" __global__ void embedding_backward_positions(
    float* __restrict__ dwte, float* __restrict__ dwpe,
    const real* __restrict__ dout, const int* __restrict__ tokens,
    int B, int T, int C, int V, int P) {
    int t = blockIdx.x;
    for (int i = threadIdx.x; i < C; i += BLOCK) {
        float sum = 0.0f;
        for (int b = 0; b < B; b++) sum += to_float(dout[((size_t)b * T + t) * C + i]);
        dwpe[(size_t)t * C + i] += sum;
    }
}
