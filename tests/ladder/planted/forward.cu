// layernorm forward: a sound kernel, into which test_check.py plants one bug at a time
// Needs:  nothing
// Define: BLOCK = 2 * warp
// Launch: layernorm_forward<<<min(N, 2), BLOCK, 4 * C>>>

#include "portable.cuh"

__device__ float block_sum(float value, float* partial /* (BLOCK / WARP_SIZE) */) {
    value = warp_sum(value);
    if (lane_id() == 0) {
        partial[warp_id()] = value;
    }
    __syncthreads();  // all warps' sums are written before any is read
    float sum = 0.0f;
    for (int warp = 0; warp < BLOCK / WARP_SIZE; warp++) {
        sum += partial[warp];
    }
    __syncthreads();  // all are read before the next call overwrites them
    return sum;
}

extern "C" __global__ void layernorm_forward(
    real* __restrict__ out,           // (N, C)
    float* __restrict__ mean,         // (N)
    float* __restrict__ rstd,         // (N)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (C)
    const real* __restrict__ bias,    // (C)
    int N, int C) {
    extern __shared__ float tile[];  // (C)
    __shared__ float partial[BLOCK / WARP_SIZE];
    for (int row = blockIdx.x; row < N; row += gridDim.x) {
        for (int i = threadIdx.x; i < C; i += BLOCK) {
            tile[i] = to_float(inp[(size_t)row * C + i]);
        }
        float sum = 0.0f, squares = 0.0f;
        for (int i = threadIdx.x; i < C; i += BLOCK) {
            sum += tile[i];
        }
        float m = block_sum(sum, partial) / C;
        for (int i = threadIdx.x; i < C; i += BLOCK) {
            squares += (tile[i] - m) * (tile[i] - m);
        }
        float r = rsqrtf(block_sum(squares, partial) / C + 1e-5f);
        for (int i = threadIdx.x; i < C; i += BLOCK) {
            size_t at = (size_t)row * C + i;
            float value = (tile[i] - m) * r * to_float(weight[i]) + to_float(bias[i]);
            out[at] = to_real(value);
        }
        if (threadIdx.x == 0) {
            mean[row] = m;
            rstd[row] = r;
        }
    }
}
