#pragma once

#include <algorithm>
#include <vector>

// Microseconds of launch(): the median of 50 runs, after 10 runs to warm up. A memset before each
// run evicts the kernel's arrays from the L2 cache: a layer of a model finds its input in memory,
// too.
template <class Launch>
double median_us(Launch launch) {
    int l2 = 0;
    check(cudaDeviceGetAttribute(&l2, cudaDevAttrL2CacheSize, 0));
    void* other;
    check(cudaMalloc(&other, 2 * (size_t)l2));
    cudaEvent_t before, after;
    check(cudaEventCreate(&before));
    check(cudaEventCreate(&after));
    std::vector<float> times;
    for (int run = 0; run < 60; run++) {
        check(cudaMemsetAsync(other, 0, 2 * (size_t)l2));
        check(cudaEventRecord(before));
        launch();
        check(cudaEventRecord(after));
        check(cudaEventSynchronize(after));
        float milliseconds;
        check(cudaEventElapsedTime(&milliseconds, before, after));
        if (run >= 10) times.push_back(1000 * milliseconds);
    }
    std::nth_element(times.begin(), times.begin() + 25, times.end());
    return times[25];
}
