// crossentropy fused, rung 6: base-2 exponentials (exp2) instead of exp
// Before: the hardware computes only 2^x, so each __expf of rung 5 subtracts, multiplies, and
//         handles results too small for a normal float.
// Change: exp(x - highest) = 2^(x * LOG2_E - shift), with shift = highest * LOG2_E: one
//         multiply-add (FMA) and one fast_exp2, which flushes small results to 0. The rounding of
//         shift does no harm: it is a factor that all exponentials of a sum, and the sum, have in
//         common.
// Expect: half the instructions. Those of rung 5 fit beside its bytes, so there is little to gain.
// Needs:  Vp % vector == 0; Vp * sizeof_real + 1024 <= shared_bytes
// Define: BLOCK = 1024; WARPS = BLOCK // warp
// Launch: crossentropy_fused<<<N, BLOCK, Vp * sizeof_real>>>
// After:  5
// Left:   while a block reduces its sums, no load of its next row is in flight.

#include "fast_math.cuh"
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

    float shift = LOWEST, sum = 0.0f;  // of the columns that this thread has read
    for (int v = threadIdx.x; v < vectors; v += BLOCK) {
        Vec xs = kept[v] = load_vec(x + v * VECTOR);
        float before = shift, highest = LOWEST;
        for (int k = 0; k < VECTOR; k++) {
            highest = fmaxf(highest, to_float(xs[k]));
        }
        shift = fmaxf(shift, highest * LOG2_E);
        sum *= fast_exp2(before - shift);
        for (int k = 0; k < VECTOR; k++) {
            sum += fast_exp2(fmaf(to_float(xs[k]), LOG2_E, -shift));
        }
    }
    if (int i = vectors * VECTOR + threadIdx.x; i < V) {  // the last few columns
        float value = to_float(x[i]), before = shift;
        shift = fmaxf(shift, value * LOG2_E);
        sum = sum * fast_exp2(before - shift) + fast_exp2(fmaf(value, LOG2_E, -shift));
    }
    float own = shift;
    shift = block_max(own, partial);
    sum = block_sum(sum * fast_exp2(own - shift), partial);

    float scale = dloss[0] / sum;
    for (int v = threadIdx.x; v < vectors; v += BLOCK) {
        Vec xs = kept[v], ds;
        for (int k = 0; k < VECTOR; k++) {
            ds[k] = to_real(fast_exp2(fmaf(to_float(xs[k]), LOG2_E, -shift)) * scale);
        }
        store_vec(x + v * VECTOR, ds);
    }
    for (int i = vectors * VECTOR + threadIdx.x; i < Vp; i += BLOCK) {
        // Padding, the columns from V on, has no gradient.
        float power = i < V ? fast_exp2(fmaf(to_float(x[i]), LOG2_E, -shift)) : 0.0f;
        x[i] = to_real(power * scale);
    }
    __syncthreads();  // the whole row is written before its target is overwritten
    if (threadIdx.x == 0) {
        float exponent = fmaf(correct, LOG2_E, -shift);
        x[target] = to_real((fast_exp2(exponent) / sum - 1.0f) * dloss[0]);
        losses[row] = (log2f(sum) - exponent) * LN_2;
    }
}
