// start add, rung 2: one block, neighbouring threads add neighbouring elements
// Before: rung 1 gives each thread a chunk, so a warp's addresses lie far apart.
// Change: thread i takes the elements i, i + 256, i + 512, …: a warp reads 128 bytes in a row.
// Expect: 4 sectors per request in place of 32, the same additions; still one block.
// Needs:  real == float32
// Launch: start_add<<<1, 256>>>
// After:  1
// Left:   one block keeps one multiprocessor busy, and the others idle -> rung 3.
extern "C" __global__ void start_add(float* c,        // (N)
                                     const float* a,  // (N)
                                     const float* b,  // (N)
                                     int N) {
    for (int i = threadIdx.x; i < N; i += blockDim.x) {
        c[i] = a[i] + b[i];
    }
}
