#pragma once

// A buffer for intermediate results. It starts as NaN, since no result may depend on its content;
// flags, by which blocks wait for each other, start as 0.
template <class T>
T* scratch(size_t elements, int byte = 0xff) {
    T* buffer;
    check(cudaMalloc(&buffer, elements * sizeof(T)));
    check(cudaMemset(buffer, byte, elements * sizeof(T)));
    return buffer;
}
