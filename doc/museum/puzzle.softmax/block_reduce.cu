// puzzle softmax: the row's maximum and sum by block reductions that share their storage
// Needs:  nothing
// Define: THREADS = 64; WARPS = THREADS // warp
// Launch: puzzle_softmax<<<N, THREADS>>>

#include "portable.cuh"

constexpr float LOWEST = -3.4028235e38f;  // the lowest float: no element is below it

struct Storage { float of_warp[WARPS]; };

__device__ float block_max(float x, Storage& storage) {
    x = warp_max(x);
    if (lane_id() == 0) storage.of_warp[warp_id()] = x;
    __syncthreads();  // the maxima of all warps are written
    for (int i = 0; i < WARPS; i++) x = fmaxf(x, storage.of_warp[i]);
    return x;
}

__device__ float block_sum(float x, Storage& storage) {
    x = warp_sum(x);
    if (lane_id() == 0) storage.of_warp[warp_id()] = x;
    __syncthreads();  // the sums of all warps are written
    float sum = 0.0f;
    for (int i = 0; i < WARPS; i++) sum += storage.of_warp[i];
    return sum;
}

extern "C" __global__ void puzzle_softmax(
    float* __restrict__ out,      // (N, C)
    const float* __restrict__ a,  // (N, C)
    int N, int C) {
    __shared__ Storage storage;
    const float* x = a + (size_t)blockIdx.x * C;  // (C)
    float* y = out + (size_t)blockIdx.x * C;      // (C)
    float largest = LOWEST;
    for (int start = 0; start < C; start += THREADS) {  // a reduction for each chunk
        int i = start + threadIdx.x;
        largest = fmaxf(largest, block_max(i < C ? x[i] : LOWEST, storage));
        __syncthreads();  // all warps have read the storage before the next reduction
    }
    float sum = 0.0f;
    for (int i = threadIdx.x; i < C; i += THREADS) {
        sum += y[i] = expf(x[i] - largest);
    }
    sum = block_sum(sum, storage);
    for (int i = threadIdx.x; i < C; i += THREADS) {
        y[i] /= sum;
    }
}
