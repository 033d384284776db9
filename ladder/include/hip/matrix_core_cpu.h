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

// Element k of a row of a (matrix 0) or b (1), of which each lane passed PART elements: those of row
// lane % EDGE, from k = lane / EDGE * PART on. If PART is DEEP, the groups of lanes pass the same
// elements; hardware does not say which group it reads, so it is not a number if they differ.
template <int EDGE, int DEEP, int PART>
__forceinline__ EMULATOR_UNCOUNTED float matrix_element(
    const void **const *lanes, int matrix, int row, int k) {
    int first = row + k / PART * EDGE;
    uint16_t bits = ((const uint16_t *)lanes[first][matrix])[k % PART];
    for (int lane = first + EDGE; PART == DEEP && lane < WARP_SIZE; lane += EDGE) {
        if (((const uint16_t *)lanes[lane][matrix])[k] != bits) return __builtin_nanf("");
    }
    return MatrixElement::widen(bits);
}

// d (EDGE, EDGE) += a (EDGE, DEEP) * b (EDGE, DEEP)^T, by one warp. Lane l holds SUMS elements of
// column l % EDGE of d: element i is in row row_of(i, l / EDGE).
template <int EDGE, int DEEP, int PART, int SUMS, class RowOf>
__device__ __noinline__ EMULATOR_UNCOUNTED void matrix_core(
    float (&d)[SUMS], const void *a, const void *b, RowOf row_of) {
    const void *mine[2] = {a, b};
    const void **const *lanes = show<const void *>(mine);
    int column = current.thread->lane % EDGE, group = current.thread->lane / EDGE;
    float y[DEEP];
    for (int k = 0; k < DEEP; k++) y[k] = matrix_element<EDGE, DEEP, PART>(lanes, 1, column, k);
    for (int i = 0; i < SUMS; i++) {
        int row = row_of(i, group);
        float sum = d[i];
        for (int k = 0; k < DEEP; k++) {
            sum += matrix_element<EDGE, DEEP, PART>(lanes, 0, row, k) * y[k];
        }
        d[i] = sum;
    }
    emulator_warp(WARP_SYNC, ~0ull, 0, 0);  // all lanes have read the others' registers
}

}  // namespace emulator
