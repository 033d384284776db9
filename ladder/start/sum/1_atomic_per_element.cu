// start sum, rung 1: one atomic addition per element
// Before: NumPy sums on the CPU.
// Change: one thread per element. It adds its element to the total with an atomic addition: read,
//         add and write in one step, so that no addition of another thread is lost.
// Expect: slow. All atomics go to one address, where the hardware executes them one after the
//         other.
// Needs:  real == float32
// Launch: start_sum<<<ceil_div(N, 256), 256>>>
// Deterministic: no, atomics come in any order, and float additions round differently in each order
// Left:   the threads of a block should add their elements first -> rung 2.
extern "C" __global__ void start_sum(float* total,      // (1), accumulated
                                     const float* inp,  // (N)
                                     int N) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) {
        atomicAdd(total, inp[i]);
    }
}
