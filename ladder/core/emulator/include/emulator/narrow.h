// The 16-bit floating-point types, and what cuda_fp16.h and cuda_bf16.h have in common.
//
// Both are kept as their bits; arithmetic is done in float and rounded once. For + - * / and sqrt
// that is the correctly rounded result: float has more than twice their digits, plus two.
#pragma once
#include "emulator/intrinsics.h"
#include "emulator/vectors.h"

namespace emulator {

struct Half {  // 1 sign, 5 exponent, 10 fraction
    static __forceinline__ uint16_t round(float value) {
        uint32_t bits = bit_cast<uint32_t>(value), sign = bits >> 16 & 0x8000;
        bits &= 0x7fffffff;
        if (bits > 0x7f800000) return 0x7fff;                     // NaN, as the hardware writes it
        if (bits >= 0x47800000) return (uint16_t)(sign | 0x7c00);  // 65536 and more
        if (bits < 0x38800000) {
            // Below 2^-14 the unit is 2^-24: the sum is rounded there, to nearest even.
            float shifted = bit_cast<float>(bits) + 0.5f;  // 0.5 = 2^-24 * 2^23
            return (uint16_t)(sign | (bit_cast<uint32_t>(shifted) - 0x3f000000));
        }
        bits += 0xfff + (bits >> 13 & 1);  // may carry into the exponent, up to infinity: right
        return (uint16_t)(sign | ((bits - 0x38000000) >> 13));
    }
    static __forceinline__ float widen(uint16_t half) {
        uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
        uint32_t bits = (rest << 13) + 0x38000000;  // the exponent's bias is 127 instead of 15
        if (rest >= 0x7c00) bits += 0x38000000;     // infinity and NaN
        // Below 2^-14, the fraction is that of 2^-14 * (1 + fraction) - 2^-14. No float on the way
        // is below 2^-126: a processor takes a hundred cycles for those.
        float small = bit_cast<float>(0x38800000 | (rest & 0x3ff) << 13) - 0x1p-14f;
        uint32_t below = rest < 0x400 ? ~0u : 0;
        bits = (bits & ~below) | (bit_cast<uint32_t>(small) & below);
        return bit_cast<float>(sign | bits);
    }
};

struct Bfloat16 {  // 1 sign, 8 exponent, 7 fraction: the upper half of a float
    static __forceinline__ uint16_t round(float value) {
        uint32_t bits = bit_cast<uint32_t>(value);
        if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
        return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
    static __forceinline__ float widen(uint16_t value) {
        return bit_cast<float>((uint32_t)value << 16);
    }
};

template <class Format>
struct Narrow {
    uint16_t bits;

    Narrow() = default;
    template <class T, class = decltype((float)T(0)), int = sizeof(T(0) + T(0))>
    __forceinline__ Narrow(T value) : bits(Format::round((float)value)) {}
    __forceinline__ operator float() const { return Format::widen(bits); }
    static __forceinline__ Narrow of(uint16_t bits) {
        Narrow result;
        result.bits = bits;
        return result;
    }
};

template <class F>
struct alignas(4) NarrowPair {
    Narrow<F> x, y;
};

// a * b + c rounded once. The product is exact in double; where the sum is not, its last bit is
// made odd towards the true value, so that the second rounding cannot mistake it for a tie.
template <class F>
__forceinline__ Narrow<F> fused(Narrow<F> a, Narrow<F> b, Narrow<F> c) {
    double product = (double)(float)a * (double)(float)b, addend = (float)c;
    double sum = product + addend, part = sum - product;
    double error = (product - (sum - part)) + (addend - part);
    uint64_t bits = bit_cast<uint64_t>(sum);
    if (error != 0 && error - error == 0 && !(bits & 1)) bits += (error > 0) == (sum > 0) ? 1 : -1;
    // The same once more from double to float.
    double odd = bit_cast<double>(bits);
    float rounded = (float)odd;
    uint32_t word = bit_cast<uint32_t>(rounded);
    double rest = odd - (double)rounded;
    if (rest != 0 && rest - rest == 0 && !(word & 1)) word += (rest > 0) == (rounded > 0) ? 1 : -1;
    return Narrow<F>::of(F::round(bit_cast<float>(word)));
}

}  // namespace emulator

// ---- operators and functions with the same name for both types --------------------------------

// Functions of two values, and their versions for pairs.
#define EMULATOR_FUNCTION_2(NAME, NAME2, EXPRESSION)                                            \
    template <class F>                                                                          \
    __forceinline__ emulator::Narrow<F> NAME(emulator::Narrow<F> one, emulator::Narrow<F> other) { \
        float a = one, b = other;                                                               \
        return EXPRESSION;                                                                      \
    }                                                                                           \
    template <class F>                                                                          \
    __forceinline__ emulator::NarrowPair<F> NAME2(                                              \
        emulator::NarrowPair<F> a, emulator::NarrowPair<F> b) {                                 \
        return {NAME(a.x, b.x), NAME(a.y, b.y)};                                                \
    }
#define EMULATOR_ARITHMETIC(OPERATOR, NAME, NAME2)                                              \
    template <class F>                                                                          \
    __forceinline__ emulator::Narrow<F> operator OPERATOR(                                      \
        emulator::Narrow<F> a, emulator::Narrow<F> b) {                                         \
        return (float)a OPERATOR(float) b;                                                      \
    }                                                                                           \
    template <class F>                                                                          \
    __forceinline__ emulator::Narrow<F> &operator OPERATOR##=(                                  \
        emulator::Narrow<F> &a, emulator::Narrow<F> b) {                                        \
        return a = a OPERATOR b;                                                                \
    }                                                                                           \
    EMULATOR_FUNCTION_2(NAME, NAME2, a OPERATOR b)                                              \
    template <class F>                                                                          \
    __forceinline__ emulator::NarrowPair<F> operator OPERATOR(                                  \
        emulator::NarrowPair<F> a, emulator::NarrowPair<F> b) {                                 \
        return NAME2(a, b);                                                                     \
    }
EMULATOR_ARITHMETIC(+, __hadd, __hadd2)
EMULATOR_ARITHMETIC(-, __hsub, __hsub2)
EMULATOR_ARITHMETIC(*, __hmul, __hmul2)
EMULATOR_ARITHMETIC(/, __hdiv, __h2div)
#undef EMULATOR_ARITHMETIC

#define EMULATOR_COMPARISON(OPERATOR, NAME)                                                     \
    template <class F>                                                                          \
    __forceinline__ bool operator OPERATOR(emulator::Narrow<F> a, emulator::Narrow<F> b) {      \
        return (float)a OPERATOR(float) b;                                                      \
    }                                                                                           \
    template <class F>                                                                          \
    __forceinline__ bool NAME(emulator::Narrow<F> a, emulator::Narrow<F> b) {                   \
        return (float)a OPERATOR(float) b;                                                      \
    }
EMULATOR_COMPARISON(==, __heq)
EMULATOR_COMPARISON(!=, __hne)
EMULATOR_COMPARISON(<, __hlt)
EMULATOR_COMPARISON(<=, __hle)
EMULATOR_COMPARISON(>, __hgt)
EMULATOR_COMPARISON(>=, __hge)
#undef EMULATOR_COMPARISON

// Functions of one value, and their versions for pairs.
#define EMULATOR_FUNCTION(NAME, NAME2, EXPRESSION)                                              \
    template <class F>                                                                          \
    __forceinline__ emulator::Narrow<F> NAME(emulator::Narrow<F> value) {                       \
        float x = value;                                                                        \
        return EXPRESSION;                                                                      \
    }                                                                                           \
    template <class F>                                                                          \
    __forceinline__ emulator::NarrowPair<F> NAME2(emulator::NarrowPair<F> value) {              \
        return {NAME(value.x), NAME(value.y)};                                                  \
    }
EMULATOR_FUNCTION(hexp, h2exp, expf(x))
EMULATOR_FUNCTION(hexp2, h2exp2, exp2f(x))
EMULATOR_FUNCTION(hlog, h2log, logf(x))
EMULATOR_FUNCTION(hlog2, h2log2, log2f(x))
EMULATOR_FUNCTION(hsqrt, h2sqrt, sqrtf(x))
EMULATOR_FUNCTION(hrsqrt, h2rsqrt, rsqrtf(x))
EMULATOR_FUNCTION(hrcp, h2rcp, 1.0f / x)
EMULATOR_FUNCTION(hsin, h2sin, sinf(x))
EMULATOR_FUNCTION(hcos, h2cos, cosf(x))
EMULATOR_FUNCTION(htanh, h2tanh, tanhf(x))
EMULATOR_FUNCTION(hfloor, h2floor, floorf(x))
EMULATOR_FUNCTION(hceil, h2ceil, ceilf(x))
EMULATOR_FUNCTION(__habs, __habs2, fabsf(x))
EMULATOR_FUNCTION(__hneg, __hneg2, -x)
#undef EMULATOR_FUNCTION

EMULATOR_FUNCTION_2(__hmax, __hmax2, fmaxf(a, b))
EMULATOR_FUNCTION_2(__hmin, __hmin2, fminf(a, b))
#undef EMULATOR_FUNCTION_2

// Those of one type, most of which have it in their names: TYPE __half, IN_NAME half, PAIR half2.
#define EMULATOR_NARROW(TYPE, PAIR, IN_NAME, IN_PAIR_NAME)                                      \
    __forceinline__ TYPE operator-(TYPE a) { return __hneg(a); }                                \
    __forceinline__ TYPE __hfma(TYPE a, TYPE b, TYPE c) { return emulator::fused(a, b, c); }    \
    __forceinline__ PAIR __hfma2(PAIR a, PAIR b, PAIR c) {                                      \
        return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)};                                  \
    }                                                                                           \
    __forceinline__ bool __hisnan(TYPE a) { return isnan((float)a); }                           \
    __forceinline__ int __hisinf(TYPE a) { return !isinf((float)a) ? 0 : (float)a > 0 ? 1 : -1; }\
    __forceinline__ float __low2float(PAIR a) { return a.x; }                                   \
    __forceinline__ float __high2float(PAIR a) { return a.y; }                                  \
    __forceinline__ float __##IN_NAME##2float(TYPE a) { return a; }                             \
    __forceinline__ TYPE __float2##IN_NAME(float a) { return a; }                               \
    __forceinline__ TYPE __float2##IN_NAME##_rn(float a) { return a; }                          \
    __forceinline__ TYPE __int2##IN_NAME##_rn(int a) { return (float)a; }                       \
    __forceinline__ int __##IN_NAME##2int_rn(TYPE a) { return __float2int_rn(a); }              \
    __forceinline__ int __##IN_NAME##2int_rz(TYPE a) { return __float2int_rz(a); }              \
    __forceinline__ float2 __##IN_PAIR_NAME##2float2(PAIR a) { return {a.x, a.y}; }              \
    __forceinline__ PAIR __floats2##IN_PAIR_NAME##_rn(float a, float b) { return {a, b}; }       \
    __forceinline__ PAIR __float22##IN_PAIR_NAME##_rn(float2 a) { return {a.x, a.y}; }           \
    __forceinline__ PAIR __float2##IN_PAIR_NAME##_rn(float a) { return {a, a}; }                 \
    __forceinline__ PAIR __##IN_NAME##2##IN_PAIR_NAME(TYPE a) { return {a, a}; }                 \
    __forceinline__ PAIR __halves2##IN_PAIR_NAME(TYPE a, TYPE b) { return {a, b}; }              \
    __forceinline__ TYPE __low2##IN_NAME(PAIR a) { return a.x; }                                \
    __forceinline__ TYPE __high2##IN_NAME(PAIR a) { return a.y; }                               \
    __forceinline__ PAIR __low2##IN_PAIR_NAME(PAIR a) { return {a.x, a.x}; }                     \
    __forceinline__ PAIR __high2##IN_PAIR_NAME(PAIR a) { return {a.y, a.y}; }                    \
    __forceinline__ unsigned short __##IN_NAME##_as_ushort(TYPE a) { return a.bits; }           \
    __forceinline__ short __##IN_NAME##_as_short(TYPE a) { return (short)a.bits; }              \
    __forceinline__ TYPE __ushort_as_##IN_NAME(unsigned short bits) { return TYPE::of(bits); }  \
    __forceinline__ TYPE __short_as_##IN_NAME(short bits) { return TYPE::of((uint16_t)bits); }  \
    __forceinline__ PAIR make_##IN_PAIR_NAME(TYPE x, TYPE y) { return {x, y}; }
