// start add, rung 1: one block, one contiguous chunk per thread
// Before: NumPy adds on the CPU.
// Change: 256 threads work at the same time. Each adds its own contiguous chunk, as CPU threads
//         would.
// Expect: slow. A warp is 32 threads (lanes) that the GPU schedules together. When a warp loads
//         a[i], the addresses of its lanes lie a chunk apart: the request touches 32 different
//         sectors of memory (32 bytes each) and uses 4 bytes of each.
// Needs:  real == float32
// Launch: start_add<<<1, 256>>>
// Left:   the accesses are not coalesced; neighbouring threads should access neighbouring addresses
//         -> rung 2.
extern "C" __global__ void start_add(float* c,        // (N)
                                     const float* a,  // (N)
                                     const float* b,  // (N)
                                     int N) {
    int chunk = (N + blockDim.x - 1) / blockDim.x;
    int begin = threadIdx.x * chunk;
    int end = min(begin + chunk, N);
    for (int i = begin; i < end; i++) {
        c[i] = a[i] + b[i];
    }
}
