// puzzle row_sum: a block adds several rows, one after the other, through one shared array
// Needs:  nothing
// Define: THREADS = 128; ROWS = 4
// Launch: puzzle_row_sum<<<ceil_div(N, ROWS), THREADS>>>

#include "portable.cuh"

extern "C" __global__ void puzzle_row_sum(
    float* __restrict__ out,      // (N)
    const float* __restrict__ a,  // (N, C)
    int N, int C) {
    __shared__ float partial[THREADS];
    int last = min((blockIdx.x + 1) * ROWS, N);
    for (int row = blockIdx.x * ROWS; row < last; row++) {
        float sum = 0.0f;
        for (int i = threadIdx.x; i < C; i += THREADS) {
            sum += a[(size_t)row * C + i];
        }
        partial[threadIdx.x] = sum;
        __syncthreads();  // all partial sums are written
        if (threadIdx.x == 0) {
            float total = 0.0f;
            for (int i = 0; i < THREADS; i++) total += partial[i];
            out[row] = total;
        }
        __syncthreads();  // thread 0 has read them before the next row overwrites them
    }
}
