#pragma once

// A buffer for intermediate results. It starts as NaN, since no result may depend on its content.
template <class T>
T* scratch(size_t elements) {
    T* buffer;
    check(cudaMalloc(&buffer, elements * sizeof(T)));
    check(cudaMemset(buffer, 0xff, elements * sizeof(T)));
    return buffer;
}
