// What a kernel written for nvcc finds in headers of the host, which NVRTC does not have, nor clang
// for AMD's GPUs here: limits of float, and names of types. `python -m ladder adopt` includes it.
#pragma once

#ifndef FLT_MAX
#define FLT_MAX 3.402823466e+38f
#define FLT_MIN 1.175494351e-38f
#define FLT_EPSILON 1.192092896e-07f
#endif
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
#ifndef M_PI
#define M_PI 3.14159265358979323846
#endif
#ifndef INT_MAX
#define INT_MAX 0x7fffffff
#endif
#ifndef NULL
#define NULL nullptr
#endif
#if defined(__CUDACC_RTC__) || defined(KERNEL_LADDER_EMULATOR) || !__has_include(<type_traits>)
namespace std {
template <bool VALUE>
struct bool_constant {
    static constexpr bool value = VALUE;
};
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;
}  // namespace std
#else
#include <type_traits>
#endif

#if defined(__CUDACC_RTC__)
typedef signed char int8_t;
typedef signed short int16_t;
typedef signed int int32_t;
typedef signed long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef unsigned long long uintptr_t;
#endif
typedef unsigned int uint;
typedef unsigned char uchar;
typedef unsigned short ushort;
