// CUDA's mathematical functions and intrinsics that C's <math.h> does not have.
//
// Fast intrinsics (__expf, __fdividef, ...) give the precise result: a kernel whose error bounds
// need the sloppy one is wrong anyway, and one that survives it here is checked again on a GPU.
#pragma once
#include <math.h>

#include "emulator/thread.h"

template <class A, class B>
__forceinline__ auto min(A a, B b) -> decltype(a + b) {
    return b < a ? b : a;
}
template <class A, class B>
__forceinline__ auto max(A a, B b) -> decltype(a + b) {
    return a < b ? b : a;
}
// NaN loses against a number, as on the GPU.
__forceinline__ float min(float a, float b) { return fminf(a, b); }
__forceinline__ float max(float a, float b) { return fmaxf(a, b); }
__forceinline__ double min(double a, double b) { return fmin(a, b); }
__forceinline__ double max(double a, double b) { return fmax(a, b); }

__forceinline__ float rsqrtf(float x) { return (float)(1.0 / sqrt((double)x)); }
__forceinline__ double rsqrt(double x) { return 1.0 / sqrt(x); }
__forceinline__ float rsqrt(float x) { return rsqrtf(x); }
__forceinline__ void sincosf(float x, float *sine, float *cosine) {
    *sine = sinf(x);
    *cosine = cosf(x);
}
__forceinline__ float exp10f(float x) { return (float)pow(10.0, (double)x); }
__forceinline__ float sinpif(float x) { return (float)sin(M_PI * fmod((double)x, 2.0)); }
__forceinline__ float cospif(float x) { return (float)cos(M_PI * fmod((double)x, 2.0)); }
__forceinline__ float normcdff(float x) { return (float)(0.5 * erfc(-M_SQRT1_2 * (double)x)); }
__forceinline__ double normcdf(double x) { return 0.5 * erfc(-M_SQRT1_2 * x); }
__forceinline__ float rcbrtf(float x) { return (float)(1.0 / cbrt((double)x)); }
__forceinline__ float rhypotf(float x, float y) {
    return (float)(1.0 / hypot((double)x, (double)y));
}
__forceinline__ float norm3df(float x, float y, float z) {
    return (float)hypot(hypot((double)x, (double)y), (double)z);
}
__forceinline__ float __saturatef(float x) { return x > 0 ? fminf(x, 1.0f) : 0.0f; }  // NaN: 0

__forceinline__ float __expf(float x) { return expf(x); }
__forceinline__ float __exp10f(float x) { return powf(10.0f, x); }
__forceinline__ float __logf(float x) { return logf(x); }
__forceinline__ float __log2f(float x) { return log2f(x); }
__forceinline__ float __log10f(float x) { return log10f(x); }
__forceinline__ float __powf(float x, float y) { return powf(x, y); }
__forceinline__ float __sinf(float x) { return sinf(x); }
__forceinline__ float __cosf(float x) { return cosf(x); }
__forceinline__ float __tanhf(float x) { return tanhf(x); }
#define __sincosf emulator_sincosf  // macOS has a function of this name
__forceinline__ void __sincosf(float x, float *s, float *c) { sincosf(x, s, c); }

__forceinline__ float __fdividef(float a, float b) { return a / b; }
__forceinline__ float __fdiv_rn(float a, float b) { return a / b; }
__forceinline__ float __frcp_rn(float x) { return 1.0f / x; }
__forceinline__ float __fsqrt_rn(float x) { return sqrtf(x); }
__forceinline__ float __frsqrt_rn(float x) { return rsqrtf(x); }
__forceinline__ float __fadd_rn(float a, float b) { return a + b; }
__forceinline__ float __fsub_rn(float a, float b) { return a - b; }
__forceinline__ float __fmul_rn(float a, float b) { return a * b; }
__forceinline__ float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }

namespace emulator {
// The same bits as another type.
template <class To, class From>
__forceinline__ To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From), "");
    To to;
    __builtin_memcpy(&to, &from, sizeof to);
    return to;
}
// Beyond the type's range the first or last number, and of NaN 0.
__forceinline__ int to_int(float x) {
    return x != x ? 0 : x >= 0x1p31f ? 0x7fffffff : x < -0x1p31f ? -0x7fffffff - 1 : (int)x;
}
__forceinline__ unsigned to_unsigned(float x) {
    return !(x > 0) ? 0 : x >= 0x1p32f ? 0xffffffff : (unsigned)x;
}
}  // namespace emulator
__forceinline__ int __float_as_int(float x) { return emulator::bit_cast<int>(x); }
__forceinline__ unsigned __float_as_uint(float x) { return emulator::bit_cast<unsigned>(x); }
__forceinline__ float __int_as_float(int x) { return emulator::bit_cast<float>(x); }
__forceinline__ float __uint_as_float(unsigned x) { return emulator::bit_cast<float>(x); }
__forceinline__ long long __double_as_longlong(double x) {
    return emulator::bit_cast<long long>(x);
}
__forceinline__ double __longlong_as_double(long long x) { return emulator::bit_cast<double>(x); }

// Conversions. _rn rounds to nearest, ties to even, _rz towards zero, _rd down, _ru up.
__forceinline__ int __float2int_rn(float x) { return emulator::to_int(rintf(x)); }
__forceinline__ int __float2int_rz(float x) { return emulator::to_int(x); }
__forceinline__ int __float2int_rd(float x) { return emulator::to_int(floorf(x)); }
__forceinline__ int __float2int_ru(float x) { return emulator::to_int(ceilf(x)); }
__forceinline__ unsigned __float2uint_rn(float x) { return emulator::to_unsigned(rintf(x)); }
__forceinline__ unsigned __float2uint_rz(float x) { return emulator::to_unsigned(x); }
__forceinline__ float __int2float_rn(int x) { return (float)x; }
__forceinline__ float __uint2float_rn(unsigned x) { return (float)x; }
__forceinline__ float __double2float_rn(double x) { return (float)x; }

// Integers.
__forceinline__ int __mulhi(int a, int b) { return (int)((long long)a * b >> 32); }
__forceinline__ unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned)((unsigned long long)a * b >> 32);
}
__forceinline__ unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
__forceinline__ int __mul24(int a, int b) {  // of the lower 24 bits of each
    return (int)((unsigned)((int)((unsigned)a << 8) >> 8) * (unsigned)((int)((unsigned)b << 8) >> 8));
}
__forceinline__ unsigned __umul24(unsigned a, unsigned b) {
    return (a & 0xffffff) * (b & 0xffffff);
}
__forceinline__ int __popc(unsigned x) { return __builtin_popcount(x); }
__forceinline__ int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
__forceinline__ int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
__forceinline__ int __clzll(long long x) { return x ? __builtin_clzll(x) : 64; }
__forceinline__ int __ffs(int x) { return __builtin_ffs(x); }
__forceinline__ int __ffsll(long long x) { return __builtin_ffsll(x); }
__forceinline__ unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int bit = 0; bit < 32; bit++) reversed |= (x >> bit & 1) << (31 - bit);
    return reversed;
}
// Byte i of the result is byte (selector >> 4i & 7) of the eight bytes b:a.
__forceinline__ unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    uint64_t bytes = (uint64_t)b << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; i++)
        result |= (unsigned)(bytes >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
    return result;
}
__forceinline__ unsigned __funnelshift_l(unsigned low, unsigned high, unsigned by) {
    return (unsigned)(((uint64_t)high << 32 | low) << (by & 31) >> 32);
}
__forceinline__ unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return (unsigned)(((uint64_t)high << 32 | low) >> (by & 31));
}

// Loads and stores with a hint for the cache. A CPU has no such hints.
#define EMULATOR_LOAD(NAME)                            \
    template <class T>                                 \
    __forceinline__ T NAME(const T *address) {         \
        return *address;                               \
    }
EMULATOR_LOAD(__ldg)
EMULATOR_LOAD(__ldca)
EMULATOR_LOAD(__ldcg)
EMULATOR_LOAD(__ldcs)
EMULATOR_LOAD(__ldlu)
EMULATOR_LOAD(__ldcv)
#undef EMULATOR_LOAD
#define EMULATOR_STORE(NAME)                           \
    template <class T>                                 \
    __forceinline__ void NAME(T *address, T value) {   \
        *address = value;                              \
    }
EMULATOR_STORE(__stwb)
EMULATOR_STORE(__stcg)
EMULATOR_STORE(__stcs)
EMULATOR_STORE(__stwt)
#undef EMULATOR_STORE

