// start add, rung 3: one thread per element, blocks on every SM
// Before: rung 2 runs in one block, on one SM.
// Change: one thread per element, in as many blocks as that takes.
// Expect: the same requests, from all SMs at once. Bound by memory.
// Needs:  real == float32
// Launch: start_add<<<ceil_div(N, 256), 256>>>
// After:  2
// Left:   only the bytes themselves: 12 for each addition.
extern "C" __global__ void start_add(float* c,        // (N)
                                     const float* a,  // (N)
                                     const float* b,  // (N)
                                     int N) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) {
        c[i] = a[i] + b[i];
    }
}
