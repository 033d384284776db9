// start add, rung 3: one thread per element, blocks on every SM
// Before: rung 2 runs in one block, on one SM.
// Change: one thread per element, in as many blocks as that takes.
// Expect: the same requests, from all SMs at once. Bound by memory.
// Needs:  real == float32
// Launch: start_add<<<ceil_div(N, 256), 256>>>
// After:  2
// Left:   each thread loads 8 bytes and ends: with vectorized (128-bit) loads, as in the residual
//         ladder, more bytes are in flight.
extern "C" __global__ void start_add(float* c,        // (N)
                                     const float* a,  // (N)
                                     const float* b,  // (N)
                                     int N) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) {
        c[i] = a[i] + b[i];
    }
}
