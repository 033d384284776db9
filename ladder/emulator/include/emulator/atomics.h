// Atomics. Each returns the old value; in counting mode it is reported as one atomic access.
#pragma once
#include "emulator/thread.h"

namespace emulator {

// old = *address; *address = change(old); as one step, for any type of 2, 4 or 8 bytes. `old` is a
// guess, which the exchange corrects.
template <class T, class Change>
__forceinline__ T exchange(T *address, T old, Change change) {
    T desired;
    do {
        desired = change(old);
    } while (!emulator_compare_exchange(address, &old, &desired, sizeof(T)));
    return old;
}

// The same by a thread: counted.
template <class T, class Change>
__forceinline__ T atomic(T *address, Change change) {
    T old;
    emulator_atomic_load(address, &old, sizeof(T));
    return exchange(address, old, change);
}

template <class T>
struct identity {  // keeps a parameter out of the deduction of T: atomicAdd(&counter, 1)
    using type = T;
};
template <class T>
using same = typename identity<T>::type;

}  // namespace emulator

#define EMULATOR_ATOMIC(NAME, EXPRESSION)                                              \
    template <class T>                                                                 \
    __forceinline__ T NAME(T *address, emulator::same<T> value) {                      \
        return emulator::atomic(address, [value](T old) -> T { return EXPRESSION; });  \
    }
EMULATOR_ATOMIC(atomicAdd, old + value)
EMULATOR_ATOMIC(atomicSub, old - value)
EMULATOR_ATOMIC(atomicExch, (void(old), value))
EMULATOR_ATOMIC(atomicMin, value < old ? value : old)
EMULATOR_ATOMIC(atomicMax, old < value ? value : old)
EMULATOR_ATOMIC(atomicAnd, old & value)
EMULATOR_ATOMIC(atomicOr, old | value)
EMULATOR_ATOMIC(atomicXor, old ^ value)
EMULATOR_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
EMULATOR_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)
#undef EMULATOR_ATOMIC

template <class T>
__forceinline__ T atomicCAS(T *address, emulator::same<T> compare, emulator::same<T> value) {
    return emulator::atomic(address, [=](T old) { return old == compare ? value : old; });
}
