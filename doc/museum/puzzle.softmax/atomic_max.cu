// puzzle softmax: the maximum of a row by an atomic on the bits of a float
// Needs:  nothing
// Deterministic: no, an atomic adds the sums of warps in any order
// Define: THREADS = 128
// Launch: puzzle_softmax<<<N, THREADS>>>

#include "portable.cuh"

// Floats of either sign, as integers that are in the same order.
__device__ int ordered(float x) {
    int bits = __float_as_int(x);
    return bits < 0 ? bits ^ 0x7fffffff : bits;
}
__device__ float from_ordered(int bits) {
    return __int_as_float(bits < 0 ? bits ^ 0x7fffffff : bits);
}

extern "C" __global__ void puzzle_softmax(
    float* __restrict__ out,      // (N, C)
    const float* __restrict__ a,  // (N, C)
    int N, int C) {
    __shared__ int largest;
    __shared__ float total;
    const float* x = a + (size_t)blockIdx.x * C;  // (C)
    float* y = out + (size_t)blockIdx.x * C;      // (C)
    if (threadIdx.x == 0) {
        largest = ordered(-INFINITY);
        total = 0.0f;
    }
    __syncthreads();  // both are set
    for (int i = threadIdx.x; i < C; i += THREADS) {
        atomicMax(&largest, ordered(x[i]));
    }
    __syncthreads();  // the maximum is complete
    float m = from_ordered(largest), sum = 0.0f;
    for (int i = threadIdx.x; i < C; i += THREADS) {
        sum += y[i] = expf(x[i] - m);
    }
    sum = warp_sum(sum);
    if (lane_id() == 0) atomicAdd(&total, sum);
    __syncthreads();  // the sum is complete
    for (int i = threadIdx.x; i < C; i += THREADS) {
        y[i] /= total;
    }
}
