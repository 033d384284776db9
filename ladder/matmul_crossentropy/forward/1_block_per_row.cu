// matmul_crossentropy forward, rung 1: one block per row
// Before: the NumPy reference.
// Change: each row's block computes the target's logit, then all logits of the row, a thread those
//         of every 256th column. It stores exponentials of their differences, and sums them.
// Expect: crossentropy.fused moves 2 * N * OC * sizeof(real) bytes to read logits and to write
//         gradients; here exps are written once. The product is as far below the roof (the
//         roofline ceiling) as matmul.forward rung 1's: each multiply-add needs two loads.
// Needs:  real in (float32, bfloat16)
// Define: BLOCK = 256; WARPS = BLOCK // warp
// Launch: matmul_crossentropy_forward<<<N, BLOCK>>>
// Left:   every row of weight is loaded N times; a product on tensor cores -> 16bit rung 2.

#include "portable.cuh"

constexpr float MOST = 0x1p90f;  // of an exponential: sums of them, and their inverses, are finite

// A row of inp times a row of weight.
__device__ float dot(const real* x /* (C) */, const real* w /* (C) */, int C) {
    float sum = 0.0f;
    for (int i = 0; i < C; i++) {
        sum += to_float(x[i]) * to_float(w[i]);
    }
    return sum;
}

// The sum of `value` over the block, returned to every thread.
__device__ float block_sum(float value, float* partial /* (WARPS) */) {
    value = warp_sum(value);
    if (lane_id() == 0) partial[warp_id()] = value;
    __syncthreads();  // every warp's sum is written before it is read
    return warp_sum(lane_id() < WARPS ? partial[lane_id()] : 0.0f);
}

extern "C" __global__ void matmul_crossentropy_forward(
    real* __restrict__ exps,          // (N, OC)  exp(logits - target's); at the target 1 - total
    float* __restrict__ losses,       // (N)      log(total)
    float* __restrict__ factors,      // (N)      dloss / total
    real* __restrict__ scaled,        // (N, C)   factors * inp
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (OC, C)
    const int* __restrict__ targets,  // (N)
    const float* __restrict__ dloss,  // (1)
    int C, int V, int OC) {
    __shared__ float partial[WARPS];
    int row = blockIdx.x, target = targets[row];
    const real* x = inp + (size_t)row * C;  // (C)
    real* y = exps + (size_t)row * OC;      // (OC)
    float correct = dot(x, weight + (size_t)target * C, C);

    float sum = 0.0f;
    for (int i = threadIdx.x; i < OC; i += BLOCK) {
        float logit = i < V ? dot(x, weight + (size_t)i * C, C) : -INFINITY;  // padding
        float power = expf(logit - correct);
        if (power > MOST) power = MOST;  // not fminf, which would hide NaN
        y[i] = to_real(power);
        sum += power;
    }
    float total = block_sum(sum, partial);  // and all exps are written before the target's is again

    float factor = dloss[0] / total;
    for (int i = threadIdx.x; i < C; i += BLOCK) {
        scaled[(size_t)row * C + i] = to_real(to_float(x[i]) * factor);
    }
    if (threadIdx.x == 0) {
        y[target] = to_real(1.0f - total);
        losses[row] = logf(total);
        factors[row] = factor;
    }
}
