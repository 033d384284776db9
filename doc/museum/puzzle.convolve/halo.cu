// puzzle convolve: a window of the input in shared memory, with the neighbours of its end
// Needs:  K <= 64
// Define: THREADS = 128; MOST = 64
// Launch: puzzle_convolve<<<ceil_div(N, THREADS), THREADS>>>

#include "portable.cuh"

extern "C" __global__ void puzzle_convolve(
    float* __restrict__ out,      // (N)
    const float* __restrict__ a,  // (N + K - 1)
    const float* __restrict__ w,  // (K)
    int N, int K) {
    __shared__ float window[THREADS + MOST];
    int first = blockIdx.x * THREADS, end = N + K - 1;
    int i = first + threadIdx.x;
    if (i < end) window[threadIdx.x] = a[i];
    if (threadIdx.x < K - 1 && i + THREADS < end) {
        window[threadIdx.x + THREADS] = a[i + THREADS];  // the halo
    }
    __syncthreads();  // the window is written
    if (i >= N) return;
    float sum = 0.0f;
    for (int k = 0; k < K; k++) sum += w[k] * window[threadIdx.x + k];
    out[i] = sum;
}
