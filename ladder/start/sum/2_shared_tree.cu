// start sum, rung 2: a block adds up in shared memory, pair by pair
// Before: rung 1 does one atomic addition per element, all to one address.
// Change: 256 threads reduce 256 elements to one in a tree of 8 steps; one atomic per block.
// Expect: 256 times fewer atomics. But in the first step every second thread works, then every
//         fourth: whole warps stay busy with most of their lanes idle.
// Needs:  real == float32
// Launch: start_sum<<<ceil_div(N, 256), 256>>>
// Deterministic: no, the blocks' atomics come in any order
// After:  1
// Left:   keep the working threads together in few warps -> rung 3.
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
