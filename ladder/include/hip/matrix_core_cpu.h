// The CPU twin of AMD's matrix core instructions, for the emulator.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace emulator {

#if defined(REAL_FLOAT16)
using MatrixElement = Half;
#else
using MatrixElement = Bfloat16;
#endif

// d (ROWS, ROWS) += a (ROWS, DEEP) * b (ROWS, DEEP)^T, by one warp. With r = l % ROWS and
// g = l / ROWS, lane l passes PART elements of row r of a and of b, those from k = g * PART on, and
// holds SUMS elements of column r of d: element i is in row row_of(i, g). If PART is DEEP, the
// groups of lanes pass the same elements; hardware does not say which group it reads, so the
// result is not a number if they differ.
template <int ROWS, int DEEP, int PART, int SUMS, class RowOf>
__device__ __noinline__ EMULATOR_UNCOUNTED void matrix_core(
    float (&d)[SUMS], const void *a, const void *b, RowOf row_of) {
    const void *mine[2] = {a, b};
    const void **const *lanes = show<const void *>(mine);
    auto element = [&](int matrix, int row, int k) {
        auto in = [&](int lane) { return ((const uint16_t *)lanes[lane][matrix])[k % PART]; };
        uint16_t bits = in(row + k / PART * ROWS);
        for (int lane = row; PART == DEEP && lane < WARP_SIZE; lane += ROWS) {
            if (in(lane) != bits) return __builtin_nanf("");
        }
        return MatrixElement::widen(bits);
    };
    int column = current.thread->lane % ROWS, group = current.thread->lane / ROWS;
    for (int i = 0; i < SUMS; i++) {
        for (int k = 0; k < DEEP; k++) {
            d[i] += element(0, row_of(i, group), k) * element(1, column, k);
        }
    }
    emulator_warp(WARP_SYNC, ~0ull, 0, 0);  // all lanes have read the others' registers
}

}  // namespace emulator
