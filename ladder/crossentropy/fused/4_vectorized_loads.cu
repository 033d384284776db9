// crossentropy fused, rung 4: vectorized (128-bit) loads and stores
// Before: in rung 3, one instruction moves 2 or 4 bytes per lane, and every column may rescale the
//         sum.
// Change: a thread takes VECTOR neighbouring columns with one 16-byte (128-bit) instruction. It
//         computes their maximum first, so that the sum is rescaled once per vector, without a
//         branch. The few columns after the last whole vector are taken one by one.
// Expect: 4 to 8 times fewer memory instructions, and chains of dependent steps that are as much
//         shorter.
// Needs:  Vp % vector == 0
// Define: BLOCK = 1024; WARPS = BLOCK // warp
// Launch: crossentropy_fused<<<N, BLOCK>>>
// After:  3
// Left:   the second read of a row hits a cache only if nothing displaced the row -> rung 5.

#include "portable.cuh"

// The lowest finite float. Not -INFINITY: the difference of two of those is NaN.
constexpr float LOWEST = -3.402823466e38f;

// The maximum of `value` over the block, returned to every thread.
__device__ float block_max(float value, float* partial /* (WARPS) */) {
    value = warp_max(value);
    if (lane_id() == 0) partial[warp_id()] = value;
    __syncthreads();  // every warp's maximum is written before it is read
    value = warp_max(lane_id() < WARPS ? partial[lane_id()] : LOWEST);
    __syncthreads();  // all threads have read `partial` before the next call overwrites it
    return value;
}

// The sum of `value` over the block, returned to every thread.
__device__ float block_sum(float value, float* partial /* (WARPS) */) {
    value = warp_sum(value);
    if (lane_id() == 0) partial[warp_id()] = value;
    __syncthreads();  // every warp's sum is written before it is read
    value = warp_sum(lane_id() < WARPS ? partial[lane_id()] : 0.0f);
    __syncthreads();  // all threads have read `partial` before the next call overwrites it
    return value;
}

extern "C" __global__ void crossentropy_fused(
    float* __restrict__ losses,       // (N)
    real* __restrict__ logits,        // (N, Vp)  overwritten by dlogits
    const int* __restrict__ targets,  // (N)
    const float* __restrict__ dloss,  // (1)
    int N, int V, int Vp) {
    __shared__ float partial[WARPS];
    int row = blockIdx.x;
    real* x = logits + (size_t)row * Vp;  // (Vp)
    int target = targets[row];
    float correct = to_float(x[target]);  // before it is overwritten
    int vectors = V / VECTOR;  // whole vectors; V need not be a multiple of VECTOR, only Vp

    float highest = LOWEST, sum = 0.0f;  // of the columns that this thread has read
    for (int v = threadIdx.x; v < vectors; v += BLOCK) {
        Vec xs = load_vec(x + v * VECTOR);
        float before = highest;
        for (int k = 0; k < VECTOR; k++) {
            highest = fmaxf(highest, to_float(xs[k]));
        }
        sum *= __expf(before - highest);
        for (int k = 0; k < VECTOR; k++) {
            sum += __expf(to_float(xs[k]) - highest);
        }
    }
    if (int i = vectors * VECTOR + threadIdx.x; i < V) {  // the last few columns
        float value = to_float(x[i]), before = highest;
        highest = fmaxf(highest, value);
        sum = sum * __expf(before - highest) + __expf(value - highest);
    }
    float own = highest;
    highest = block_max(own, partial);
    sum = block_sum(sum * __expf(own - highest), partial);

    float scale = dloss[0] / sum;
    for (int v = threadIdx.x; v < vectors; v += BLOCK) {
        Vec xs = load_vec(x + v * VECTOR), ds;
        for (int k = 0; k < VECTOR; k++) {
            ds[k] = to_real(__expf(to_float(xs[k]) - highest) * scale);
        }
        store_vec(x + v * VECTOR, ds);
    }
    for (int i = vectors * VECTOR + threadIdx.x; i < Vp; i += BLOCK) {
        // Padding, the columns from V on, has no gradient.
        x[i] = to_real(i < V ? __expf(to_float(x[i]) - highest) * scale : 0.0f);
    }
    __syncthreads();  // the whole row is written before its target is overwritten
    if (threadIdx.x == 0) {
        x[target] = to_real((__expf(correct - highest) / sum - 1.0f) * dloss[0]);
        losses[row] = logf(sum) - (correct - highest);
    }
}
