// The kernel's arrays on both sides, and the comparison of its results with the CPU's.
//
// How far may a result be from the CPU's y? The kernel computes in float32. What it computes
// differs from y by at most
//
//     t = 8 sqrt(terms) (u |y| + s)        u = 2^-24, half the distance from 1 to the next float32
//
// A float32 sum of n terms equals the exact sum of terms that are changed by n u at most (Higham,
// Accuracy and Stability of Numerical Algorithms, section 4.2). Rounding errors differ in sign, so
// they grow like sqrt(n): with a probability of 1 - 10^-13 they stay within 8 sqrt(n) u (Higham and
// Mary, SIAM J. Sci. Comput. 41(5), 2019). s is how far such a change moves y. It is measured: the
// CPU's loop also runs on inputs that are changed at random by a factor of 1 + u or 1 - u, and the
// largest change in a row of the result counts.
//
// The kernel then rounds its result to the type of the array. Rounding keeps the order of numbers,
// so the result must lie between y - t and y + t, both rounded to that type.
//
// If the kernel rounds an intermediate result to `real` as well (`Rounds` in its header), it
// changes a factor by the u of that type; t is larger by 2 s u_real / u.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

// Ends the program, with status 2, where a call of CUDA fails.
void check(cudaError_t status) {
    if (status == cudaSuccess) return;
    fprintf(stderr, "%s\n", cudaGetErrorString(status));
    exit(2);
}

constexpr double UNIT_ROUNDOFF = 0x1p-24;  // u

// One argument of the kernel. Its elements are of type T; the CPU computes in double.
template <class T>
struct Array {
    static constexpr bool is_real = !std::is_integral_v<T>;  // not token ids or random states
    using Exact = std::conditional_t<is_real, double, T>;

    const char* name;
    size_t rows, columns;      // columns: the last dimension; rows: all others together
    std::vector<Exact> value;  // what the CPU's loop reads and writes
    std::vector<Exact> moved;  // what it has made of changed inputs
    std::vector<T> start;      // what is on the GPU before the launch
    T* device;

    // Starts as NaN, so that a result that is never written does not pass.
    Array(const char* name, size_t rows, size_t columns)
        : name(name), rows(rows), columns(columns), value(rows * columns), start(rows * columns) {
        std::fill(value.begin(), value.end(), std::numeric_limits<Exact>::quiet_NaN());
        check(cudaMalloc(&device, value.size() * sizeof(T)));
    }

    Exact* cpu() { return value.data(); }

    // Rounds `value` to the kernel's type, so that both sides start from the same numbers.
    void round() {
        for (size_t i = 0; i < start.size(); i++) {
            if constexpr (is_real) start[i] = (T)(float)value[i];
            if constexpr (!is_real) start[i] = value[i];
        }
        reset();
    }

    void reset() {
        if constexpr (is_real) {
            for (size_t i = 0; i < start.size(); i++) value[i] = (float)start[i];
        }
    }

    void change(std::mt19937& random) {
        if constexpr (is_real) {
            for (double& x : value) x *= 1 + (random() % 2 ? UNIT_ROUNDOFF : -UNIT_ROUNDOFF);
        }
    }

    void upload() {
        check(cudaMemcpy(device, start.data(), start.size() * sizeof(T), cudaMemcpyHostToDevice));
    }

    // Whether all elements on the GPU are right; prints a line that says so.
    // terms: how many products are summed into one element. u_real: of the type to which the kernel
    // rounds intermediate results, or 0. store(x, i): x, rounded as element i is.
    template <class Store>
    bool verify(double terms, double u_real, Store store) const {
        std::vector<T> got(start.size());
        check(cudaMemcpy(got.data(), device, got.size() * sizeof(T), cudaMemcpyDeviceToHost));
        size_t wrong = 0;
        double largest = 0;
        for (size_t row = 0; row < rows; row++) {
            double s = 0;
            for (size_t i = row * columns; i < (row + 1) * columns; i++) {
                s = std::max(s, std::fabs(moved[i] - value[i]));
            }
            for (size_t i = row * columns; i < (row + 1) * columns; i++) {
                double x = (float)got[i], y = value[i];
                double t = 8 * std::sqrt(terms) * (UNIT_ROUNDOFF * std::fabs(y) + s);
                t += 2 * s * u_real / UNIT_ROUNDOFF;
                double low = store(y - t, i), high = store(y + t, i);
                if (x != y) largest = std::max(largest, std::fabs(x - y));
                if (low <= x && x <= high) continue;  // NaN does not
                if (wrong++ > 0) continue;
                printf("%s[%zu, %zu] is %.9g, ", name, row, i % columns, x);
                printf("and must lie between %.9g and %.9g\n", low, high);
            }
        }
        if (wrong > 0) {
            printf("%s: WRONG, %zu of %zu elements\n", name, wrong, got.size());
        } else {
            printf("%s: right, the largest error is %.2g\n", name, largest);
        }
        return wrong == 0;
    }

    bool verify(double terms, double u_real = 0) const {
        return verify(terms, u_real, [](double x, size_t) { return (float)(T)(float)x; });
    }
};

template <class... Arrays>
void fill_normal(std::mt19937& random, Arrays&... array) {
    std::normal_distribution<double> normal;
    auto fill = [&](double& x) { x = normal(random); };
    (std::for_each(array.value.begin(), array.value.end(), fill), ...);
}

// Runs the CPU's loop on changed inputs, then on the kernel's own, and copies these to the GPU.
template <class Loop, class... Arrays>
void run_on_cpu(Loop loop, Arrays&... array) {
    std::mt19937 random(2);
    (array.round(), ...);
    (array.change(random), ...);
    loop();
    ((array.moved = array.value), ...);
    (array.reset(), ...);
    loop();
    (array.upload(), ...);
}
