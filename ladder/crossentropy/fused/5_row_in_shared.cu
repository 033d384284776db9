// crossentropy fused, rung 5: row cached in shared memory
// Before: rung 4 reads every row twice, and relies on a cache for the second read.
// Change: the first pass stores each vector in shared memory, where the same thread reads it again.
// Expect: each byte is read from memory once and written once, whatever else runs. A row of 50,304
//         columns takes 98 KiB in 16 bits. An SM (streaming multiprocessor) therefore holds two
//         blocks, and has to hide the waits of one behind the work of the other.
// Needs:  Vp % vector == 0; Vp * sizeof_real + 1024 <= shared_bytes
// Define: BLOCK = 1024; WARPS = BLOCK // warp
// Launch: crossentropy_fused<<<N, BLOCK, Vp * sizeof_real>>>
// After:  4
// Left:   two exponentials for every logit, each of several instructions -> rung 6.

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
    extern __shared__ Vec kept[];  // (Vp / VECTOR)  each read only by the thread that wrote it
    __shared__ float partial[WARPS];
    int row = blockIdx.x;
    real* x = logits + (size_t)row * Vp;  // (Vp)
    int target = targets[row];
    float correct = to_float(x[target]);  // before it is overwritten
    int vectors = V / VECTOR;  // whole vectors; V need not be a multiple of VECTOR, only Vp

    float highest = LOWEST, sum = 0.0f;  // of the columns that this thread has read
    for (int v = threadIdx.x; v < vectors; v += BLOCK) {
        Vec xs = kept[v] = load_vec(x + v * VECTOR);
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
        Vec xs = kept[v], ds;
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
