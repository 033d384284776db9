// Atomics. Each returns the old value; in counting mode it is reported as one atomic access.
#pragma once
#include "emulator/thread.h"
#include "emulator/types.h"

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

template <class T>
__forceinline__ T sum(T a, T b) {
    return a + b;
}
template <class Format>
__forceinline__ NarrowPair<Format> sum(NarrowPair<Format> a, NarrowPair<Format> b) {
    return {a.x + b.x, a.y + b.y};
}

}  // namespace emulator

// NVIDIA's GPUs have each atomic for some types only. AMD's have some more, which a kernel for both
// cannot use.
#define EMULATOR_SCOPES(NAME, PARAMETERS, ARGUMENTS)                                    \
    template <class T>                                                                 \
    __forceinline__ T NAME##_block PARAMETERS {                                        \
        return NAME ARGUMENTS;                                                         \
    }                                                                                  \
    template <class T>                                                                 \
    __forceinline__ T NAME##_system PARAMETERS {                                       \
        return NAME ARGUMENTS;                                                         \
    }
#define EMULATOR_ATOMIC(NAME, EXPRESSION, ...)                                          \
    template <class T>                                                                 \
    __forceinline__ T NAME(T *address, emulator::same<T> value) {                      \
        static_assert(emulator::is_one_of<T, __VA_ARGS__>,                             \
                      "CUDA has " #NAME " for " #__VA_ARGS__                           \
                      ", and for other types a loop of atomicCAS");                    \
        return emulator::atomic(address, [value](T old) -> T { return EXPRESSION; });  \
    }                                                                                  \
    EMULATOR_SCOPES(NAME, (T * address, emulator::same<T> value), (address, value))
EMULATOR_ATOMIC(atomicAdd, emulator::sum(old, value), int, unsigned, unsigned long long, float,
                double, emulator::type_of_16_bits)
EMULATOR_ATOMIC(atomicSub, old - value, int, unsigned)
EMULATOR_ATOMIC(atomicExch, (void(old), value), int, unsigned, unsigned long long, float)
EMULATOR_ATOMIC(atomicMin, value < old ? value : old, int, unsigned, long long, unsigned long long)
EMULATOR_ATOMIC(atomicMax, old < value ? value : old, int, unsigned, long long, unsigned long long)
EMULATOR_ATOMIC(atomicAnd, old & value, int, unsigned, long long, unsigned long long)
EMULATOR_ATOMIC(atomicOr, old | value, int, unsigned, long long, unsigned long long)
EMULATOR_ATOMIC(atomicXor, old ^ value, int, unsigned, long long, unsigned long long)
EMULATOR_ATOMIC(atomicInc, old >= value ? 0 : old + 1, unsigned)
EMULATOR_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1, unsigned)

template <class T>
__forceinline__ T atomicCAS(T *address, emulator::same<T> compare, emulator::same<T> value) {
    static_assert(emulator::is_one_of<T, int, unsigned, unsigned long long, unsigned short>,
                  "CUDA has atomicCAS for int, unsigned, unsigned long long and unsigned short: "
                  "pass the address of other types as one of these, and their bits as values");
    return emulator::atomic(address, [=](T old) { return old == compare ? value : old; });
}
EMULATOR_SCOPES(atomicCAS, (T * address, emulator::same<T> compare, emulator::same<T> value),
                (address, compare, value))
#undef EMULATOR_ATOMIC
#undef EMULATOR_SCOPES
