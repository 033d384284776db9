// reduce(group, value, operation): combines the values of a group's threads; each gets the result.
//
// The values are combined in a tree, neighbours first. `less` and `greater` are CUDA's names for the
// minimum and the maximum.
#pragma once
#include "../cooperative_groups.h"

namespace cooperative_groups {

#define EMULATOR_OPERATION(NAME, EXPRESSION)                              \
    template <class T>                                                    \
    struct NAME {                                                         \
        __forceinline__ T operator()(T a, T b) const { return EXPRESSION; } \
    };
EMULATOR_OPERATION(plus, a + b)
EMULATOR_OPERATION(less, b < a ? b : a)
EMULATOR_OPERATION(greater, a < b ? b : a)
EMULATOR_OPERATION(bit_and, a &b)
EMULATOR_OPERATION(bit_or, a | b)
EMULATOR_OPERATION(bit_xor, a ^ b)
#undef EMULATOR_OPERATION

template <class Group, class T, class Operation>
__forceinline__ T reduce(const Group &group, T value, Operation operation) {
    unsigned rank = group.thread_rank(), size = group.size();
    for (unsigned distance = 1; distance < size; distance *= 2) {
        T other = group.shfl(value, rank + distance < size ? rank + distance : rank);
        if (rank % (2 * distance) == 0 && rank + distance < size) value = operation(value, other);
    }
    return group.shfl(value, 0);
}

}  // namespace cooperative_groups
