// start add, rung 1: one block, every thread adds a chunk of neighbouring elements
// Before: NumPy adds on the CPU.
// Change: 256 threads work at once, each on its own contiguous chunk, as CPU threads would.
// Expect: slow. The 32 threads of a warp load at the same moment, and their addresses lie a chunk
//         apart: every request touches 32 different sectors of memory and uses 4 bytes of each 32.
// Needs:  real == float32
// Launch: start_add<<<1, 256>>>
// Left:   neighbouring threads should touch neighbouring addresses -> rung 2.
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
