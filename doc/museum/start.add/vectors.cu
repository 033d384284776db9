// start add: four elements a thread, the last ones of the array one by one
// Needs:  nothing
// Define: THREADS = 64
// Launch: start_add<<<ceil_div(N, 4 * THREADS), THREADS>>>

#include "portable.cuh"

extern "C" __global__ void start_add(
    float* __restrict__ c,        // (N)
    const float* __restrict__ a,  // (N)
    const float* __restrict__ b,  // (N)
    int N) {
    int i = (blockIdx.x * THREADS + threadIdx.x) * 4;
    if (i + 3 < N) {  // all four are there
        float4 x = *reinterpret_cast<const float4*>(a + i);
        float4 y = *reinterpret_cast<const float4*>(b + i);
        *reinterpret_cast<float4*>(c + i) =
            make_float4(x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w);
    } else {
        for (; i < N; i++) c[i] = a[i] + b[i];
    }
}
