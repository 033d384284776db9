// start sum, rung 2: shared-memory tree reduction, interleaved addressing
// Before: rung 1 does one atomic addition per element, all to one address.
// Change: the 256 threads of a block reduce 256 elements in shared memory, in a tree: each of 8
//         steps halves the number of partial sums. Then one thread does one atomic addition.
// Expect: 256 times fewer atomics. But in the first step every second thread adds, then every
//         fourth, and so on (interleaved addressing). The warps diverge: all of them stay busy,
//         with most of their lanes idle.
// Needs:  real == float32
// Launch: start_sum<<<ceil_div(N, 256), 256>>>
// Deterministic: no, the atomics of the blocks come in any order
// After:  1
// Left:   the threads that add should fill few warps -> rung 3.
extern "C" __global__ void start_sum(float* total,      // (1), accumulated
                                     const float* inp,  // (N)
                                     int N) {
    __shared__ float partial[256];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int t = threadIdx.x;
    partial[t] = i < N ? inp[i] : 0.0f;
    __syncthreads();  // every element is in shared memory before a neighbour reads it
    for (int stride = 1; stride < blockDim.x; stride *= 2) {
        if (t % (2 * stride) == 0) {
            partial[t] += partial[t + stride];
        }
        __syncthreads();  // this step's sums are written before the next step reads them
    }
    if (t == 0) {
        atomicAdd(total, partial[0]);
    }
}
