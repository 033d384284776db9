// layernorm forward, rung 2: one block per row, shared-memory tree reduction
// Before: in rung 1, the lanes of a warp read addresses that lie C apart.
// Change: the threads of a block share a row. Neighbouring threads take neighbouring channels, so
//         the accesses are coalesced. The partial sums of the threads are added in shared memory,
//         in a tree: each step halves their number.
// Expect: all bytes of a sector are used. Two reductions of log2(BLOCK) steps remain, with a
//         barrier after each step. At a barrier the whole block waits, and loads nothing.
// Needs:  nothing
// Define: BLOCK = 256
// Launch: layernorm_forward<<<N, BLOCK>>>
// After:  1
// Left:   some twenty barriers per row -> rung 3.

#include "portable.cuh"

constexpr float EPS = 1e-5f;  // keeps rstd finite where a row is constant

// The sum of `value` over the block, returned to every thread. BLOCK is a power of two.
__device__ float block_sum(float value, float* partial /* (BLOCK) */) {
    partial[threadIdx.x] = value;
    __syncthreads();  // all values are written before another thread adds them
    for (int half = BLOCK / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) {
            partial[threadIdx.x] += partial[threadIdx.x + half];
        }
        __syncthreads();  // this step's sums are written before the next step reads them
    }
    float sum = partial[0];
    __syncthreads();  // all threads have read the sum before the next call overwrites it
    return sum;
}

extern "C" __global__ void layernorm_forward(
    real* __restrict__ out,           // (N, C)
    float* __restrict__ mean,         // (N)
    float* __restrict__ rstd,         // (N)  1 / standard deviation
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (C)
    const real* __restrict__ bias,    // (C)
    int N, int C) {
    __shared__ float partial[BLOCK];
    int row = blockIdx.x;
    const real* x = inp + (size_t)row * C;  // (C)
    real* y = out + (size_t)row * C;        // (C)

    float sum = 0.0f;
    for (int i = threadIdx.x; i < C; i += BLOCK) {
        sum += to_float(x[i]);
    }
    float m = block_sum(sum, partial) / C;

    float squares = 0.0f;
    for (int i = threadIdx.x; i < C; i += BLOCK) {
        float centred = to_float(x[i]) - m;
        squares += centred * centred;
    }
    float r = rsqrtf(block_sum(squares, partial) / C + EPS);

    for (int i = threadIdx.x; i < C; i += BLOCK) {
        float normalised = (to_float(x[i]) - m) * r;
        y[i] = to_real(normalised * to_float(weight[i]) + to_float(bias[i]));
    }
    if (threadIdx.x == 0) {
        mean[row] = m;
        rstd[row] = r;
    }
}
