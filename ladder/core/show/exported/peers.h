#pragma once

// The rows of an array for all ranks, which here share one GPU: `elements` from one to the next.
template <class T, class Stored>
Peers<T> peers(Stored* array, int ranks, size_t elements) {
    Peers<T> rows{};
    for (int rank = 0; rank < ranks; rank++) rows.at[rank] = array + rank * elements;
    return rows;
}
