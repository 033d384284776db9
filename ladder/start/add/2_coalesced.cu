// start add, rung 2: one block, coalesced loads and stores
// Before: rung 1 gives each thread a chunk, so the addresses of a warp lie far apart.
// Change: thread i takes the elements i, i + 256, i + 512, … The lanes of a warp now access 128
//         contiguous bytes: the accesses are coalesced.
// Expect: 4 sectors per request instead of 32, and the same additions. It is still one block.
// Needs:  real == float32
// Launch: start_add<<<1, 256>>>
// After:  1
// Left:   one block runs on one SM (streaming multiprocessor), and the other SMs are idle -> rung
//         3.
extern "C" __global__ void start_add(float* c,        // (N)
                                     const float* a,  // (N)
                                     const float* b,  // (N)
                                     int N) {
    for (int i = threadIdx.x; i < N; i += blockDim.x) {
        c[i] = a[i] + b[i];
    }
}
