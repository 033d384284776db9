// nvcuda::wmma: small matrix products by a whole warp.
//
// Which lane holds which element of a fragment is ours to choose, as it is the hardware's: element
// e of lane l is number 32 * e + l of the matrix, row by row. A kernel that relies on another map
// gives wrong results here, as it may on the next GPU.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#if WARP_SIZE != 32
#error "nvcuda::wmma needs warps of 32 threads"
#endif

namespace nvcuda::wmma {

struct matrix_a;
struct matrix_b;
struct accumulator;
struct row_major;
struct col_major;
enum layout_t { mem_row_major, mem_col_major };
namespace precision {
struct tf32;  // stored as float, with 10 bits of fraction
}

template <class T>
struct storage {
    using type = T;
};
template <>
struct storage<precision::tf32> {
    using type = float;
};

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment {
    using element_type = typename storage<T>::type;
    using storage_element_type = element_type;
    // D (M, N) = A (M, K) * B (K, N) + C (M, N): the rows and columns of each.
    static constexpr int rows = emulator::is_same<Use, matrix_b> ? K : M;
    static constexpr int columns = emulator::is_same<Use, matrix_a> ? K : N;
    static constexpr int num_elements = rows * columns / 32;
    element_type x[num_elements];
};

template <class Use, int M, int N, int K, class T, class L, class V>
__forceinline__ void fill_fragment(fragment<Use, M, N, K, T, L> &f, V value) {
    for (auto &element : f.x) element = value;
}

// Calls visit(element of the fragment, its offset in memory) for what this lane holds.
template <class Fragment, class Visit>
__forceinline__ void for_each_element(Fragment &f, unsigned ld, bool by_column, Visit visit) {
    for (int e = 0; e < Fragment::num_elements; e++) {
        size_t number = 32 * e + threadIdx.x % 32;
        size_t row = number / Fragment::columns, column = number % Fragment::columns;
        visit(f.x[e], by_column ? column * ld + row : row * ld + column);
    }
    emulator::emulator_warp(emulator::WARP_SYNC, ~0ull, 0, 0);
}

template <class Use, int M, int N, int K, class T, class L, class S>
__forceinline__ void load_matrix_sync(
    fragment<Use, M, N, K, T, L> &f, const S *from, unsigned ld) {
    auto load = [&](auto &element, size_t offset) { element = from[offset]; };
    for_each_element(f, ld, emulator::is_same<L, col_major>, load);
}
template <int M, int N, int K, class T>
__forceinline__ void load_matrix_sync(
    fragment<accumulator, M, N, K, T> &f, const T *from, unsigned ld, layout_t layout) {
    auto load = [&](auto &element, size_t offset) { element = from[offset]; };
    for_each_element(f, ld, layout == mem_col_major, load);
}
template <int M, int N, int K, class T>
__forceinline__ void store_matrix_sync(
    T *to, const fragment<accumulator, M, N, K, T> &f, unsigned ld, layout_t layout) {
    auto store = [&](auto &element, size_t offset) { to[offset] = element; };
    for_each_element(f, ld, layout == mem_col_major, store);
}

// To nearest, ties away from zero.
__forceinline__ float __float_to_tf32(float x) {
    unsigned bits = __float_as_uint(x);
    return isfinite(x) ? __uint_as_float((bits + 0x1000) & ~0x1fffu) : x;
}

template <int M, int N, int K, class T, class TAB, class LA, class LB, class TC>
__forceinline__ void mma_sync(
    fragment<accumulator, M, N, K, T> &d, const fragment<matrix_a, M, N, K, TAB, LA> &a,
    const fragment<matrix_b, M, N, K, TAB, LB> &b, const fragment<accumulator, M, N, K, TC> &c) {
    // Every lane shows the others where its registers are.
    using A = typename storage<TAB>::type;
    struct Registers {
        const A *a, *b;
    } mine{a.x, b.x};
    auto lanes = (Registers *const *)emulator::emulator_warp(
        emulator::WARP_GATHER, ~0ull, (uint64_t)&mine, 0);
    for (int e = 0; e < d.num_elements; e++) {
        int number = 32 * e + threadIdx.x % 32, row = number / N, column = number % N;
        float sum = c.x[e];
        for (int k = 0; k < K; k++) {
            int i = row * K + k, j = k * N + column;
            sum += (float)lanes[i % 32]->a[i / 32] * (float)lanes[j % 32]->b[j / 32];
        }
        d.x[e] = sum;
    }
    // No lane goes on, and changes its registers, before all have read them.
    emulator::emulator_warp(emulator::WARP_SYNC, ~0ull, 0, 0);
}

}  // namespace nvcuda::wmma
