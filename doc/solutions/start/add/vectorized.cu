// start add: four elements for each thread, 16 bytes at a time
// Needs:  real == float32
// Launch: start_add<<<ceil_div(N, 4 * 256), 256>>>
// After:  3
extern "C" __global__ void start_add(float* c,        // (N)
                                     const float* a,  // (N)
                                     const float* b,  // (N)
                                     int N) {
    int i = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (i + 4 <= N) {
        float4 x = *reinterpret_cast<const float4*>(a + i);
        float4 y = *reinterpret_cast<const float4*>(b + i);
        *reinterpret_cast<float4*>(c + i) = {x.x + y.x, x.y + y.y, x.z + y.z, x.w + y.w};
    } else {
        for (; i < N; i++) {  // the last elements, where N is not a multiple of four
            c[i] = a[i] + b[i];
        }
    }
}
