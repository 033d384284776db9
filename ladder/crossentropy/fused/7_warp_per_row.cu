// crossentropy fused, rung 7: one warp per row, held in registers
// Before: rung 1 reads rows three times with accesses that are not coalesced. Rungs 2 to 6 have a
//         block of 1024 threads for each row. A vocabulary of characters has fewer tokens than
//         that, and both reductions wait at barriers for warps that have no work.
// Change: a warp takes a row. Each lane keeps every WARP_SIZE-th logit in registers, and maximum
//         and sum are reduced with warp shuffles.
// Expect: each logit is read once and each gradient written once, coalesced, without a barrier:
//         memory-bound where rows are short. A longer row would not fit into registers.
// Needs:  Vp <= 16 * warp
// Define: WARPS = 4; EACH = ceil_div(Vp, warp)
// Launch: crossentropy_fused<<<ceil_div(N, WARPS), WARPS * warp>>>
// After:  1
// Left:   loads are 2 or 4 bytes wide.

#include "portable.cuh"

// The lowest finite float. Not -INFINITY: the difference of two of those is NaN.
constexpr float LOWEST = -3.402823466e38f;

extern "C" __global__ void crossentropy_fused(
    float* __restrict__ losses,       // (N)
    real* __restrict__ logits,        // (N, Vp)  overwritten by dlogits
    const int* __restrict__ targets,  // (N)
    const float* __restrict__ dloss,  // (1)
    int N, int V, int Vp) {
    int row = blockIdx.x * WARPS + warp_id(), lane = lane_id();
    if (row >= N) return;  // whole warps return, so no shuffle below misses a lane
    real* x = logits + (size_t)row * Vp;  // (Vp)
    int target = targets[row];

    float values[EACH], highest = LOWEST;  // of this lane's columns: lane + j * WARP_SIZE
    float correct = 0.0f;  // the target's, in the lane that has it
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int i = lane + j * WARP_SIZE;
        values[j] = i < V ? to_float(x[i]) : LOWEST;
        highest = fmaxf(highest, values[j]);
        if (i == target) correct = values[j];
    }
    highest = warp_max(highest);

    float sum = 0.0f;  // of exponentials; none is above 1, so none overflows
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int i = lane + j * WARP_SIZE;
        values[j] = i < V ? __expf(values[j] - highest) : 0.0f;
        sum += values[j];
    }
    sum = warp_sum(sum);

    float scale = dloss[0] / sum;
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        int i = lane + j * WARP_SIZE;
        if (i >= Vp) break;
        float gradient = i == target ? (values[j] / sum - 1.0f) * dloss[0] : values[j] * scale;
        x[i] = to_real(gradient);  // 0 in the padding
    }
    if (lane == target % WARP_SIZE) losses[row] = logf(sum) - (correct - highest);
}
