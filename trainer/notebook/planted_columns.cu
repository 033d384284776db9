// matmul backward_bias: a sum for each column
// Define: WARPS = 4
// Launch: matmul_backward_bias<<<ceil_div(OC, WARPS), WARPS * warp>>>
#include "portable.cuh"

extern "C" __global__ void matmul_backward_bias(
    float* __restrict__ dbias,      // (OC)  accumulates
    const real* __restrict__ dout,  // (N, OC)
    int N, int OC) {
    int column = blockIdx.x * WARPS + warp_id();
    if (column >= OC) return;  // the whole warp

    float sum = 0.0f;
    for (int row = lane_id(); row < N; row += WARP_SIZE) {
        sum += to_float(dout[(size_t)row * OC + column]);
    }
    sum = warp_sum(sum);
    if (lane_id() == 0) dbias[column] += sum;
}
