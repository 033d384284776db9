#pragma once

#include "arrays.h"

// Fills each row with probabilities, which sum to 1.
template <class T>
void fill_probabilities(Array<T>& probs, uint32_t number) {
    for (size_t row = 0; row < probs.start.size(); row += probs.columns) {
        double total = 0;  // of whole numbers, hence exact
        for (size_t i = row; i < row + probs.columns; i++) total += (hash_of(number, i) >> 8) + 1;
        for (size_t i = row; i < row + probs.columns; i++) {
            probs.start[i] = (T)(float)(((hash_of(number, i) >> 8) + 1) / total);
        }
    }
}
