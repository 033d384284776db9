// inclusive_scan and exclusive_scan: each thread of a group gets the values up to its own rank,
// combined.
#pragma once
#include "reduce.h"

namespace cooperative_groups {

template <class Group, class T, class Operation = plus<T>>
__forceinline__ T inclusive_scan(const Group &group, T value, Operation operation = {}) {
    unsigned rank = group.thread_rank();
    for (unsigned distance = 1; distance < group.size(); distance *= 2) {
        T before = group.shfl_up(value, distance);
        if (rank >= distance) value = operation(before, value);
    }
    return value;
}

// The first thread gets T(), the start of a sum.
template <class Group, class T, class Operation = plus<T>>
__forceinline__ T exclusive_scan(const Group &group, T value, Operation operation = {}) {
    T before = group.shfl_up(inclusive_scan(group, value, operation), 1);
    return group.thread_rank() == 0 ? T() : before;
}

}  // namespace cooperative_groups
