// layernorm forward: the first thread of a block hands mean and rstd of its rows to the others
// Needs:  real == float32
// Define: THREADS = 128; ROWS = 4
// Launch: layernorm_forward<<<ceil_div(N, ROWS), THREADS>>>

#include "portable.cuh"

constexpr float EPS = 1e-5f;

extern "C" __global__ void layernorm_forward(
    real* __restrict__ out,           // (N, C)
    float* __restrict__ mean,         // (N)
    float* __restrict__ rstd,         // (N)
    const real* __restrict__ inp,     // (N, C)
    const real* __restrict__ weight,  // (C)
    const real* __restrict__ bias,    // (C)
    int N, int C) {
    __shared__ float of_row[2];  // mean and rstd
    int last = min((blockIdx.x + 1) * ROWS, N);
    for (int row = blockIdx.x * ROWS; row < last; row++) {
        const real* x = inp + (size_t)row * C;  // (C)
        real* y = out + (size_t)row * C;        // (C)
        if (warp_id() == 0) {
            float sum = 0.0f, squares = 0.0f;
            for (int i = lane_id(); i < C; i += WARP_SIZE) sum += x[i];
            float m = warp_sum(sum) / C;
            for (int i = lane_id(); i < C; i += WARP_SIZE) squares += (x[i] - m) * (x[i] - m);
            float r = rsqrtf(warp_sum(squares) / C + EPS);
            if (threadIdx.x == 0) {
                of_row[0] = m;
                of_row[1] = r;
            }
        }
        __syncthreads();  // both are written before other threads read them
        float m = of_row[0], r = of_row[1];
        __syncthreads();  // all threads have read them before the next row's are written
        for (int i = threadIdx.x; i < C; i += THREADS) {
            y[i] = (x[i] - m) * r * weight[i] + bias[i];
        }
        if (threadIdx.x == 0) {
            mean[row] = m;
            rstd[row] = r;
        }
    }
}
