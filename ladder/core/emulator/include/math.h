// C's mathematical functions, overloaded for float as in CUDA C++. The system's own header would bring
// a C++ library along with some compilers, and kernels have none on a GPU either.
#pragma once
#include "emulator/qualifiers.h"

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HUGE_VALF __builtin_inff()
#define M_PI 3.14159265358979323846
#define M_SQRT1_2 0.70710678118654752440
#define isnan(x) __builtin_isnan(x)
#define isinf(x) __builtin_isinf(x)
#define isfinite(x) __builtin_isfinite(x)
#define signbit(x) __builtin_signbit(x)

#define EMULATOR_1(NAME)                                              \
    extern "C" double NAME(double) noexcept;                          \
    extern "C" float NAME##f(float) noexcept;                         \
    __forceinline__ float NAME(float x) { return NAME##f(x); }
#define EMULATOR_2(NAME)                                              \
    extern "C" double NAME(double, double) noexcept;                  \
    extern "C" float NAME##f(float, float) noexcept;                  \
    __forceinline__ float NAME(float x, float y) { return NAME##f(x, y); }

EMULATOR_1(sqrt)
EMULATOR_1(cbrt)
EMULATOR_1(exp)
EMULATOR_1(exp2)
EMULATOR_1(expm1)
EMULATOR_1(log)
EMULATOR_1(log2)
EMULATOR_1(log10)
EMULATOR_1(log1p)
EMULATOR_1(sin)
EMULATOR_1(cos)
EMULATOR_1(tan)
EMULATOR_1(asin)
EMULATOR_1(acos)
EMULATOR_1(atan)
EMULATOR_1(sinh)
EMULATOR_1(cosh)
EMULATOR_1(tanh)
EMULATOR_1(asinh)
EMULATOR_1(acosh)
EMULATOR_1(atanh)
EMULATOR_1(erf)
EMULATOR_1(erfc)
EMULATOR_1(tgamma)
EMULATOR_1(lgamma)
EMULATOR_1(fabs)
EMULATOR_1(floor)
EMULATOR_1(ceil)
EMULATOR_1(round)
EMULATOR_1(trunc)
EMULATOR_1(rint)
EMULATOR_1(nearbyint)
EMULATOR_2(pow)
EMULATOR_2(fmod)
EMULATOR_2(remainder)
EMULATOR_2(atan2)
EMULATOR_2(hypot)
EMULATOR_2(fmin)
EMULATOR_2(fmax)
EMULATOR_2(fdim)
EMULATOR_2(copysign)
#undef EMULATOR_1
#undef EMULATOR_2

extern "C" double fma(double, double, double) noexcept;
extern "C" float fmaf(float, float, float) noexcept;
extern "C" double ldexp(double, int) noexcept;
extern "C" float ldexpf(float, int) noexcept;
extern "C" long lrintf(float) noexcept;
__forceinline__ float fma(float x, float y, float z) { return fmaf(x, y, z); }
__forceinline__ int abs(int x) { return x < 0 ? -x : x; }
__forceinline__ long long abs(long long x) { return x < 0 ? -x : x; }
__forceinline__ float abs(float x) { return fabsf(x); }
__forceinline__ double abs(double x) { return fabs(x); }
