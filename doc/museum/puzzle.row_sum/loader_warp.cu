// puzzle row_sum: a loader warp writes a ring of stages with plain stores
// Needs:  sm == 90; warp == 32
// Define: STAGES = 2; DEPTH = 64
// Launch: puzzle_row_sum<<<N, 2 * warp>>>

#include "hopper.cuh"
#include "portable.cuh"

extern "C" __global__ void puzzle_row_sum(
    float* __restrict__ out,      // (N)
    const float* __restrict__ a,  // (N, C)
    int N, int C) {
    __shared__ float stages[STAGES][DEPTH];
    __shared__ Mbarrier full[STAGES], empty[STAGES];
    const float* x = a + (size_t)blockIdx.x * C;  // (C)
    int lane = lane_id();
    if (threadIdx.x == 0) {
        for (int stage = 0; stage < STAGES; stage++) {
            mbarrier_init(&full[stage], 1);  // arrivals: one for the loader warp
            mbarrier_init(&empty[stage], 1);
        }
    }
    __syncthreads();  // the barriers are initialized before any thread uses them

    Ring<STAGES> now;
    if (warp_id() == 1) {  // the loader
        for (int start = 0; start < C; start += DEPTH, now.next()) {
            mbarrier_wait(&empty[now.index], now.parity ^ 1);
            for (int i = lane; i < DEPTH; i += WARP_SIZE) {
                stages[now.index][i] = start + i < C ? x[start + i] : 0.0f;
            }
            __syncwarp();  // all lanes have stored
            if (lane == 0) mbarrier_arrive(&full[now.index]);
        }
        return;
    }
    float sum = 0.0f;
    for (int start = 0; start < C; start += DEPTH, now.next()) {
        mbarrier_wait(&full[now.index], now.parity);
        for (int i = lane; i < DEPTH; i += WARP_SIZE) {
            sum += stages[now.index][i];
        }
        mbarrier_arrive_warp(&empty[now.index]);
    }
    sum = warp_sum(sum);
    if (lane == 0) out[blockIdx.x] = sum;
}
