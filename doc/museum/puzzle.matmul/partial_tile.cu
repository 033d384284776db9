// puzzle matmul: tiles in shared memory, the last one along K filled up with zeros
// Needs:  nothing
// Define: SIZE = 16
// Launch: puzzle_matmul<<<(ceil_div(N, SIZE), ceil_div(M, SIZE)), SIZE * SIZE>>>

#include "portable.cuh"

extern "C" __global__ void puzzle_matmul(
    float* __restrict__ out,      // (M, N)
    const float* __restrict__ a,  // (M, K)
    const float* __restrict__ b,  // (K, N)
    int M, int N, int K) {
    __shared__ float p[SIZE][SIZE], v[SIZE][SIZE];
    int x = threadIdx.x % SIZE, y = threadIdx.x / SIZE;
    int row = blockIdx.y * SIZE + y, column = blockIdx.x * SIZE + x;
    float sum = 0.0f;
    for (int start = 0; start < K; start += SIZE) {
        p[y][x] = row < M && start + x < K ? a[(size_t)row * K + start + x] : 0.0f;
        if (column < N && start + y < K) {
            v[y][x] = b[(size_t)(start + y) * N + column];
        } else {
            v[y][x] = 0.0f;  // 0 times what was left there might be NaN
        }
        __syncthreads();  // both tiles are written
        for (int k = 0; k < SIZE; k++) sum += p[y][k] * v[k][x];
        __syncthreads();  // both are read before the next ones overwrite them
    }
    if (row < M && column < N) out[(size_t)row * N + column] = sum;
}
