// Stochastic rounding on the CPU: as rounding.cuh, written once more, to check it by.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "philox_cpu.h"

// The number of a 16-bit type T (__half, __nv_bfloat16) with these bits.
template <class T>
double from_bits_cpu(uint16_t bits) {
    T number;
    std::memcpy((void*)&number, &bits, sizeof number);
    return (float)number;
}

// x, as float32, rounded to T: away from 0 with the probability (|x| - low) / (high - low), where
// low and high are its neighbours in T. What overflows when it is rounded to nearest stays so.
template <class T>
double round_at_random_cpu(double x, unsigned word) {
    T nearest = (float)x;
    if (!std::isfinite((float)nearest)) return (float)nearest;
    double size = std::fabs((float)x), sign = std::signbit(x) ? -1 : 1;
    uint16_t bits;
    std::memcpy(&bits, &nearest, sizeof bits);
    bits &= 0x7fff;                              // without the sign
    if (from_bits_cpu<T>(bits) > size) bits--;  // the next number towards 0
    double low = from_bits_cpu<T>(bits), high = from_bits_cpu<T>(bits + 1);
    bool up = size - low > (high - low) * (word >> 8) / 0x1p24;
    return sign * (up ? high : low);
}
