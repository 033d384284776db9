// The kernel's arrays on both sides, and the comparison of its results with samples.
//
// The samples are of what the NumPy reference computes in float64 from the same inputs. A result may
// be off by 8 sqrt(n) (u |y| + s): float32 sums of n terms are, where u = 2^-24, and s is how far the
// value y moves if the inputs change by a factor of 1 + u or 1 - u. Rounding to the type of the array
// comes on top, and to `real` or TF32 on the way (`Rounds`, `TF32` in the kernel's header).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

// Ends the program with status 2.
void fail(const char* why) {
    fprintf(stderr, "%s\n", why);
    exit(2);
}

void check(cudaError_t status) {
    if (status != cudaSuccess) fail(cudaGetErrorString(status));
}

// 32 random bits for element i of an input; `number` tells inputs apart. The mixing is that of
// MurmurHash3 (Appleby, public domain).
uint32_t hash_of(uint32_t number, size_t i) {
    uint32_t x = (uint32_t)i + number * 0x9e3779b9u;
    x = (x ^ x >> 16) * 0x85ebca6bu;
    x = (x ^ x >> 13) * 0xc2b2ae35u;
    return x ^ x >> 16;
}

// One argument of the kernel, with elements of type T.
template <class T>
struct Array {
    const char* name;
    size_t rows, columns;  // columns: the last dimension; rows: all others together
    std::vector<T> start;  // what is on the GPU before the launch
    T* device;

    // Starts as NaN, so that a result that is never written does not pass.
    Array(const char* name, size_t rows, size_t columns)
        : name(name), rows(rows), columns(columns), start(rows * columns) {
        memset((void*)start.data(), 0xff, start.size() * sizeof(T));
        check(cudaMalloc(&device, start.size() * sizeof(T)));
    }

    // Fills it with numbers from -2 to 2.
    void fill(uint32_t number) {
        for (size_t i = 0; i < start.size(); i++) {
            start[i] = (T)(float)((int32_t)hash_of(number, i) * 0x1p-30);
        }
    }

    // Fills it with the same values again and again.
    template <size_t COUNT>
    void repeat(const double (&values)[COUNT]) {
        for (size_t i = 0; i < start.size(); i++) {
            if constexpr (sizeof(T) == 2) start[i] = (T)(float)values[i % COUNT];
            if constexpr (sizeof(T) != 2) start[i] = (T)values[i % COUNT];
        }
    }

    // Fills it with the elements of another array, each run of them times its factor.
    template <size_t COUNT>
    void scale(const Array& other, const double (&factors)[COUNT]) {
        const size_t run = start.size() / COUNT;
        for (size_t i = 0; i < start.size(); i++) {
            start[i] = (T)((float)factors[i / run] * (float)other.start[i]);
        }
    }

    // Whether the samples on the GPU are right, and no element is NaN; prints a line that says so.
    // samples: of each, the index of an element, its value, and how far from it a result may be.
    template <size_t COUNT>
    bool verify(const double (&samples)[COUNT][3]) const {
        std::vector<T> got(start.size());
        check(cudaMemcpy(got.data(), device, got.size() * sizeof(T), cudaMemcpyDeviceToHost));
        size_t wrong = 0;
        double largest = 0;
        for (const auto& [index, value, tolerance] : samples) {
            size_t i = (size_t)index;
            double x = (float)got[i];
            if constexpr (sizeof(T) == 4) x = got[i];
            largest = std::max(largest, std::fabs(x - value));
            if (std::fabs(x - value) <= tolerance) continue;  // NaN is not
            if (wrong++ > 0) continue;
            printf("%s[%zu, %zu] is %.9g, ", name, i / columns, i % columns, x);
            printf("expected %.9g +- %.2g\n", value, tolerance);
        }
        size_t unwritten = std::count_if(got.begin(), got.end(), [](T x) { return std::isnan((float)x); });
        if (wrong > 0 || unwritten > 0) {
            printf("%s: WRONG, %zu of %zu samples; ", name, wrong, COUNT);
            printf("%zu of %zu elements are NaN\n", unwritten, got.size());
            return false;
        }
        printf("%s: right, the largest error of %zu samples is %.2g\n", name, COUNT, largest);
        return true;
    }
};

template <class... Arrays>
void upload(const Arrays&... arrays) {
    auto copy = [](auto* to, const auto& from) {
        check(cudaMemcpy(to, from.data(), from.size() * sizeof from[0], cudaMemcpyHostToDevice));
    };
    (copy(arrays.device, arrays.start), ...);
}
