// puzzle histogram: counted in shared memory, in rounds that reuse the counters
// Needs:  nothing
// Define: THREADS = 128; BINS = 32; EACH = 1024
// Launch: puzzle_histogram<<<ceil_div(N, EACH), THREADS>>>

#include "portable.cuh"

extern "C" __global__ void puzzle_histogram(
    int* __restrict__ counts,   // (V)
    const int* __restrict__ a,  // (N)
    int N, int V) {
    __shared__ int counters[BINS];
    int begin = blockIdx.x * EACH, end = min(begin + EACH, N);
    for (int first = 0; first < V; first += BINS) {  // a round counts so many values
        if (threadIdx.x < BINS) counters[threadIdx.x] = 0;
        __syncthreads();  // the counters are 0 before any thread counts
        for (int i = begin + threadIdx.x; i < end; i += THREADS) {
            int value = a[i] - first;
            if (value >= 0 && value < BINS) atomicAdd(&counters[value], 1);
        }
        __syncthreads();  // the round is counted
        int v = THREADS - 1 - threadIdx.x;  // the last threads add what the first have cleared
        if (v < min(BINS, V - first) && counters[v] > 0) atomicAdd(&counts[first + v], counters[v]);
        __syncthreads();  // the counters are read before the next round clears them
    }
}
