// puzzle scale: starts while the kernel before it runs, and waits for what that one writes
// Needs:  sm >= 90
// Define: THREADS = 128
// Launch: puzzle_scale<<<ceil_div(N, THREADS), THREADS>>>
// Prefetch: x

#include "dependent_launch.cuh"
#include "portable.cuh"

extern "C" __global__ void puzzle_scale(
    float* out,      // (N)
    const float* a,  // (N), written by the kernel before
    const float* x,  // (1)
    int N) {
    int i = blockIdx.x * THREADS + threadIdx.x;
    float factor = x[0];  // no kernel before writes it
    wait_for_previous();  // a is complete
    start_next();
    if (i < N) out[i] = factor * a[i];
}
