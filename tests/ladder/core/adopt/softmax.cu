// A file such as people have: kernels, host code, a CPU version and main(). The tests adopt it.
#include <assert.h>
#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_runtime.h>
#include "helpers.h"

namespace cg = cooperative_groups;

#define WARP_SIZE 32U
const int ROWS = 2;  // of a block

void softmax_cpu(float* out, const float* inp, int rows, int cols) {
    for (int i = 0; i < rows * cols; i++) out[i] = inp[i];
}

// the sum of a pair of numbers that a warp keeps
struct Stats { float maximum, sum; };

__device__ Stats merge(Stats a, Stats b) {
    float maximum = fmaxf(a.maximum, b.maximum);
    return {maximum, a.sum * expf(a.maximum - maximum) + b.sum * expf(b.maximum - maximum)};
}

// one warp for a row
__global__ void __launch_bounds__(ROWS * 32)
    softmax_warp(float* __restrict__ y, const float* __restrict__ x, int rows, int cols) {
    cg::thread_block_tile<32> warp = cg::tiled_partition<32>(cg::this_thread_block());
    int row = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
    if (row >= rows) return;
    Stats mine = {-FLT_MAX, 0.0f};
    for (uint i = warp.thread_rank(); i < cols; i += warp.size()) {
        mine = merge(mine, Stats{__ldcs(x + (size_t)row * cols + i), 1.0f});
    }
    Stats all = cg::reduce(warp, mine, merge);
    for (uint i = warp.thread_rank(); i < cols; i += warp.size()) {
        size_t at = (size_t)row * cols + i;
        __stcs(y + at, expf(__ldg(x + at) - all.maximum) / all.sum);
    }
}

template <int COLUMNS_AT_ONCE>
__global__ void softmax_block(float* y, const float* x, int rows, int cols) {
    extern __shared__ float partial[];
    const float* row = x + (size_t)blockIdx.x * cols;
    float maximum = -FLT_MAX, sum = 0.0f;
    for (int i = threadIdx.x * COLUMNS_AT_ONCE; i < cols; i += blockDim.x * COLUMNS_AT_ONCE) {
        for (int k = i; k < i + COLUMNS_AT_ONCE && k < cols; k++) maximum = fmaxf(maximum, row[k]);
    }
    partial[threadIdx.x] = maximum;
    __syncthreads();
    for (int i = 0; i < blockDim.x; i++) maximum = fmaxf(maximum, partial[i]);
    for (int i = 0; i < cols; i++) sum += expf(row[i] - maximum);
    for (int i = threadIdx.x; i < cols; i += blockDim.x) {
        y[(size_t)blockIdx.x * cols + i] = expf(row[i] - maximum) / sum;
    }
}

__global__ void exponentials(float* e, const float* x, size_t n) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) e[i] = expf(x[i]);
}

__global__ void divide(float* y, const float* e, float* sums, int cols) {
    for (int i = threadIdx.x; i < cols; i += blockDim.x) atomicAdd(&sums[blockIdx.x], e[(size_t)blockIdx.x * cols + i]);
    __syncthreads();
    for (int i = threadIdx.x; i < cols; i += blockDim.x) {
        y[(size_t)blockIdx.x * cols + i] = e[(size_t)blockIdx.x * cols + i] / sums[blockIdx.x];
    }
}

void launch_warp(float* out, const float* inp, int rows, int cols) {
    const int grid_size = (rows + ROWS - 1) / ROWS;
    softmax_warp<<<grid_size, ROWS * WARP_SIZE>>>(out, inp, rows, cols);
    CHECK(cudaGetLastError());
}

void launch_block(float* out, const float* inp, int rows, int cols, int block_size) {
    assert(block_size % 32 == 0);
    size_t smem = block_size * sizeof(float);
    if (cols >= 64) {
        softmax_block<4><<<dim3(rows), block_size, smem>>>(out, inp, rows, cols);
    } else {
        softmax_block<1><<<dim3(rows), block_size, smem>>>(out, inp, rows, cols);
    }
}

void launch_two(float* out, const float* inp, int rows, int cols, int block_size) {
    float *e, *sums;
    CHECK(cudaMalloc(&e, rows * cols * sizeof(float)));
    CHECK(cudaMalloc(&sums, rows * sizeof(float)));
    CHECK(cudaMemset(sums, 0, rows * sizeof(float)));
    exponentials<<<divide_up(rows * cols, block_size), block_size>>>(e, inp, (size_t)rows * cols);
    divide<<<rows, block_size>>>(out, e, sums, cols);
    CHECK(cudaFree(e));
}

int main() {
    float *out, *inp;
    launch_warp(out, inp, 8, 1024);
    return 0;
}
