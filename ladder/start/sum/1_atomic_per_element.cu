// start sum, rung 1: every thread adds its element to the total
// Before: NumPy sums on the CPU.
// Change: one thread per element; an atomic addition, so that no two overwrite each other.
// Expect: slow. All additions go to one address, where they can only happen one after the other.
// Needs:  real == float32
// Launch: start_sum<<<ceil_div(N, 256), 256>>>
// Deterministic: no, float additions round differently in every order, and atomics come in any
// Left:   threads should add up among themselves first -> rung 2.
extern "C" __global__ void start_sum(float* total,      // (1), accumulated
                                     const float* inp,  // (N)
                                     int N) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) {
        atomicAdd(total, inp[i]);
    }
}
