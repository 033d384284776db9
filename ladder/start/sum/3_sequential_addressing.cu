// start sum, rung 3: tree reduction, sequential addressing
// Before: in rung 2, only one lane in 2, 4, 8, … of every warp adds.
// Change: sequential addressing folds the array in half: thread t adds element t + stride, for t
//         below stride.
// Expect: the same additions by whole warps; the other warps have nothing to do. Neighbouring lanes
//         access neighbouring words of shared memory, each in its own bank: there are no bank
//         conflicts.
// Needs:  real == float32
// Launch: start_sum<<<ceil_div(N, 256), 256>>>
// Deterministic: no, the atomics of the blocks come in any order
// After:  2
// Left:   8 steps with a barrier each, although the last 5 lie within one warp -> rung 4.
extern "C" __global__ void start_sum(float* total,      // (1), accumulated
                                     const float* inp,  // (N)
                                     int N) {
    __shared__ float partial[256];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int t = threadIdx.x;
    partial[t] = i < N ? inp[i] : 0.0f;
    __syncthreads();  // every element is in shared memory before a neighbour reads it
    for (int stride = blockDim.x / 2; stride > 0; stride /= 2) {
        if (t < stride) {
            partial[t] += partial[t + stride];
        }
        __syncthreads();  // this step's sums are written before the next step reads them
    }
    if (t == 0) {
        atomicAdd(total, partial[0]);
    }
}
