// float16: clang has it as a type of its own, with conversions that round to nearest even.
#pragma once

using __half = _Float16;
__device__ __forceinline__ float __half2float(__half x) { return (float)x; }
__device__ __forceinline__ __half __float2half(float x) { return (__half)x; }
