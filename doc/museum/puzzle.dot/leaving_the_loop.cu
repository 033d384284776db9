// puzzle dot: a block adds a chunk at a time, and waits for all of its threads in each
// Needs:  nothing
// Define: THREADS = 64
// Launch: puzzle_dot<<<1, THREADS>>>

#include "portable.cuh"

extern "C" __global__ void puzzle_dot(
    float* __restrict__ out,      // (1)
    const float* __restrict__ a,  // (N)
    const float* __restrict__ b,  // (N)
    int N) {
    __shared__ float products[THREADS];
    float sum = 0.0f;
    for (int start = 0; start < N; start += THREADS) {
        int i = start + threadIdx.x;
        products[threadIdx.x] = i < N ? a[i] * b[i] : 0.0f;
        __syncthreads();  // all products of the chunk are written
        if (threadIdx.x == 0) {
            for (int k = 0; k < THREADS; k++) sum += products[k];
        }
        __syncthreads();  // they are read before the next chunk overwrites them
    }
    if (threadIdx.x == 0) out[0] = sum;
}
