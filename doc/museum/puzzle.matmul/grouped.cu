// puzzle matmul: a persistent block computes tile after tile, all of K in shared memory
// Needs:  K <= 256
// Define: SIZE = 8; DEPTH = 256; WIDE = ceil_div(N, SIZE); TILES = ceil_div(M, SIZE) * WIDE
// Launch: puzzle_matmul<<<min(TILES, multiprocessors), SIZE * SIZE>>>

#include "portable.cuh"

extern "C" __global__ void puzzle_matmul(
    float* __restrict__ out,      // (M, N)
    const float* __restrict__ a,  // (M, K)
    const float* __restrict__ b,  // (K, N)
    int M, int N, int K) {
    __shared__ float rows[SIZE][DEPTH], columns[SIZE][DEPTH];
    int x = threadIdx.x % SIZE, y = threadIdx.x / SIZE;
    for (int tile = blockIdx.x; tile < TILES; tile += gridDim.x) {
        int row = tile / WIDE * SIZE, column = tile % WIDE * SIZE;
        for (int i = threadIdx.x; i < SIZE * K; i += SIZE * SIZE) {
            int r = i / K, k = i % K;
            rows[r][k] = row + r < M ? a[(size_t)(row + r) * K + k] : 0.0f;
            columns[r][k] = column + r < N ? b[(size_t)k * N + column + r] : 0.0f;
        }
        __syncthreads();  // all of the tile's factors are written
        float sum = 0.0f;
        for (int k = 0; k < K; k++) sum += rows[y][k] * columns[x][k];
        if (row + y < M && column + x < N) out[(size_t)(row + y) * N + column + x] = sum;
        __syncthreads();  // they are read before those of the next tile overwrite them
    }
}
