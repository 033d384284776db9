#pragma once

#include <ATen/ATen.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <vector>

void fail(const char* why) { TORCH_CHECK(false, why); }

void check(cudaError_t status) {
    if (status != cudaSuccess) fail(cudaGetErrorString(status));
}

// A tensor as an argument of the kernel, with elements of type T, which PyTorch calls `type`.
template <class T>
struct Array {
    size_t rows, columns;  // columns: the last dimension; rows: all others together
    T* device;

    Array(
        const char* name, const at::Tensor& tensor, at::ScalarType type, size_t rows, size_t columns)
        : rows(rows), columns(columns), device(static_cast<T*>(tensor.data_ptr())) {
        const bool fits = tensor.numel() == int64_t(rows * columns) &&
                          (rows == 1 || tensor.size(-1) == int64_t(columns));
        TORCH_CHECK(
            fits && tensor.scalar_type() == type, name, " must be ", rows, " x ", columns,
            " elements of type ", type);
        TORCH_CHECK(
            tensor.is_cuda() && tensor.is_contiguous() && reinterpret_cast<size_t>(device) % 16 == 0,
            name, " must be contiguous, on a GPU, at a multiple of 16 bytes");
    }
};

// A buffer for intermediate results, which is kept for the next call. Flags start as 0.
template <class T>
T* scratch(size_t elements, int byte = 0xff) {
    static std::vector<at::Tensor> kept;
    kept.push_back(at::empty({int64_t(elements * sizeof(T))}, at::device(at::kCUDA).dtype(at::kByte)));
    check(cudaMemset(kept.back().data_ptr(), byte, elements * sizeof(T)));
    return static_cast<T*>(kept.back().data_ptr());
}
