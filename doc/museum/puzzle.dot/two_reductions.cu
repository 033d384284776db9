// puzzle dot: a reduction down the columns of a block, then one along its first row
// Needs:  nothing
// Define: WIDE = 32; HIGH = 8
// Launch: puzzle_dot<<<1, WIDE * HIGH>>>

#include "portable.cuh"

// Adds over y: the first row of threads has the sums of the columns.
__device__ float reduce_y(float value, float* shared, int x, int y) {
    shared[y * WIDE + x] = value;
    for (int distance = HIGH / 2; distance > 0; distance /= 2) {
        __syncthreads();  // the step before is written
        if (y < distance) {
            value += shared[(y + distance) * WIDE + x];
            shared[y * WIDE + x] = value;
        }
    }
    return value;
}

// Adds over x, the first row of threads only; the first thread has the sum.
__device__ float reduce_x(float value, float* shared, int x, int y) {
    if (y == 0) shared[WIDE - 1 - x] = value;  // in another order than reduce_y
    __syncthreads();  // the sums of the columns are written
    float sum = 0.0f;
    if (x == 0 && y == 0) {
        for (int i = 0; i < WIDE; i++) sum += shared[i];
    }
    return sum;
}

extern "C" __global__ void puzzle_dot(
    float* __restrict__ out,      // (1)
    const float* __restrict__ a,  // (N)
    const float* __restrict__ b,  // (N)
    int N) {
    __shared__ float shared[WIDE * HIGH];
    int x = threadIdx.x % WIDE, y = threadIdx.x / WIDE;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < N; i += WIDE * HIGH) sum += a[i] * b[i];
    sum = reduce_y(sum, shared, x, y);
    __syncthreads();  // all sums of reduce_y are read before reduce_x reuses the array
    sum = reduce_x(sum, shared, x, y);
    if (threadIdx.x == 0) out[0] = sum;
}
