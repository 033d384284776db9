// softmax backward, rung 3: vectorized (128-bit) loads and stores
// Before: in rung 2, one instruction moves 2 or 4 bytes per lane.
// Change: a thread takes VECTOR neighbouring columns, and moves them with one 16-byte (128-bit)
//         instruction.
// Expect: 4 to 8 times fewer memory instructions for the same sectors; more bytes in flight.
// Needs:  V % vector == 0
// Define: BLOCK = 256; WARPS = BLOCK // warp
// Launch: softmax_backward<<<N, BLOCK>>>
// After:  2
// Left:   a short row leaves most of a block idle, and is read twice -> rung 4.

#include "portable.cuh"

// The sum of `value` over the block, returned to every thread.
__device__ float block_sum(float value, float* partial /* (WARPS) */) {
    value = warp_sum(value);
    if (lane_id() == 0) partial[warp_id()] = value;
    __syncthreads();  // every warp's sum is written before it is read
    value = warp_sum(lane_id() < WARPS ? partial[lane_id()] : 0.0f);
    __syncthreads();  // all threads have read `partial` before the next call overwrites it
    return value;
}

extern "C" __global__ void softmax_backward(
    real* __restrict__ dlogits,       // (N, V)
    const real* __restrict__ dprobs,  // (N, V)
    const real* __restrict__ probs,   // (N, V)
    int N, int V) {
    __shared__ float partial[WARPS];
    int row = blockIdx.x;
    const real* dp = dprobs + (size_t)row * V;  // (V)
    const real* p = probs + (size_t)row * V;    // (V)
    real* dx = dlogits + (size_t)row * V;       // (V)

    float total = 0.0f;
    for (int i = threadIdx.x * VECTOR; i < V; i += BLOCK * VECTOR) {
        Vec dps = load_vec(dp + i), ps = load_vec(p + i);
        for (int k = 0; k < VECTOR; k++) {
            total += to_float(dps[k]) * to_float(ps[k]);
        }
    }
    total = block_sum(total, partial);
    for (int i = threadIdx.x * VECTOR; i < V; i += BLOCK * VECTOR) {
        Vec dps = load_vec(dp + i), ps = load_vec(p + i), dxs;
        for (int k = 0; k < VECTOR; k++) {
            dxs[k] = to_real(to_float(ps[k]) * (to_float(dps[k]) - total));
        }
        store_vec(dx + i, dxs);
    }
}
