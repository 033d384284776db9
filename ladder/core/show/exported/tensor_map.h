#pragma once

#include <cuda.h>

#include <cstring>

template <class T>
struct Matrix {  // a buffer for intermediate results
    T* device;
    size_t columns, rows;
};

// The tensor map with which the kernel copies tiles of `array` by TMA: (tile_rows, tile_columns)
// elements each, in rows of 128 bytes, stored in shared memory with the 128-byte swizzle. The
// driver encodes the map. cudaGetDriverEntryPointByVersion finds its function, so that the program
// need not be linked with libcuda.
template <class Tiled>
TensorMap tiles_of(
    const Tiled& array, CUtensorMapDataType type, unsigned tile_rows, unsigned tile_columns) {
    void* function;
    cudaDriverEntryPointQueryResult found;
    check(cudaGetDriverEntryPointByVersion(
        "cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess) {
        fail("the driver has no tensor maps; it must support CUDA 12.0 or later");
    }
    const cuuint64_t size[2] = {array.columns, array.rows};
    const cuuint64_t stride[1] = {array.columns * sizeof(*array.device)};  // bytes from row to row
    const cuuint32_t tile[2] = {tile_columns, tile_rows}, step[2] = {1, 1};
    CUtensorMap map;
    CUresult status = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
        &map, type, 2, array.device, size, stride, tile, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);  // zeros past the end
    if (status != CUDA_SUCCESS) fail("the driver makes no tensor map");
    TensorMap made;
    static_assert(sizeof made == sizeof map);
    memcpy(&made, &map, sizeof made);
    return made;
}
