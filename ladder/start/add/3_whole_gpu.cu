// start add, rung 3: one thread per element, on the whole GPU
// Before: rung 2 runs in one block, on one multiprocessor.
// Change: as many blocks as it takes; every thread adds one element.
// Expect: the same requests, from every multiprocessor at once; bound by memory.
// Needs:  real == float32
// Launch: start_add<<<ceil_div(N, 256), 256>>>
// After:  2
// Left:   nothing but the bytes themselves: 12 for every addition.
extern "C" __global__ void start_add(float* c,        // (N)
                                     const float* a,  // (N)
                                     const float* b,  // (N)
                                     int N) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) {
        c[i] = a[i] + b[i];
    }
}
