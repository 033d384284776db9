#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "arrays.h"

// Fills out (B, T, C) and lse (B, NH, T) as the forward pass saves them for qkv (B, T, 3C).
// factor(head, query, key) is what dropout multiplies a probability by; head is b * NH + h.
template <class T, class Factor>
void save_attention(Array<T>& out, Array<float>& lse, const Array<T>& qkv, Factor factor) {
    const size_t length = lse.columns, C = out.columns, heads = lse.rows * length / out.rows;
    const size_t width = C / heads;
    std::vector<double> score(length), sums(width);
    for (size_t row = 0; row < lse.start.size(); row++) {
        const size_t head = row / length, query = row % length, b = head / heads;
        const size_t first = head % heads * width;
        const T* q = &qkv.start[(b * length + query) * 3 * C + first];
        const T* k = &qkv.start[b * length * 3 * C + C + first];
        const T* v = k + C;
        for (size_t key = 0; key <= query; key++) {
            double sum = 0;
            for (size_t i = 0; i < width; i++) sum += (float)q[i] * (double)(float)k[key * 3 * C + i];
            score[key] = sum / std::sqrt(width);
        }
        double largest = *std::max_element(score.begin(), score.begin() + query + 1), total = 0;
        for (size_t key = 0; key <= query; key++) total += std::exp(score[key] - largest);
        lse.start[row] = largest + std::log(total);
        std::fill(sums.begin(), sums.end(), 0);
        for (size_t key = 0; key <= query; key++) {
            double prob = std::exp(score[key] - largest) / total * factor(head, query, key);
            for (size_t i = 0; i < width; i++) sums[i] += prob * (float)v[key * 3 * C + i];
        }
        T* result = &out.start[(b * length + query) * C + first];
        for (size_t i = 0; i < width; i++) result[i] = (T)(float)sums[i];
    }
}

template <class T>
void save_attention(Array<T>& out, Array<float>& lse, const Array<T>& qkv) {
    save_attention(out, lse, qkv, [](size_t, size_t, size_t) { return 1; });
}
