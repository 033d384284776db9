// The way into a kernel from outside: a function that unpacks a list of pointers to the arguments,
// as cuLaunchKernel takes it, and one that describes the parameters.
#pragma once
#include <string.h>

#include "emulator/thread.h"

namespace emulator {

// What a parameter is: 'p' pointer, 'f' floating point, 'i' integer, 's' structure.
struct Parameter {
    char kind;
    int bytes;
};
template <class T>
constexpr char parameter_kind(T *) {
    if constexpr (__is_class(T) || __is_union(T)) return 's';
    else return T(1) / T(2) != T(0) && T(1) != T(2) ? 'f' : 'i';  // of a bool, 1 and 2 are alike
}
template <class T>
constexpr char parameter_kind(T **) {
    return 'p';
}

// 0, 1, ..., Count - 1 as template arguments; <utility> would double the time a kernel compiles.
template <int... Index>
struct indices {};
template <int Count, int... Index>
struct make_indices : make_indices<Count - 1, Count - 1, Index...> {};
template <int... Index>
struct make_indices<0, Index...> {
    using type = indices<Index...>;
};

template <class... Parameters, int... Index>
EMULATOR_UNCOUNTED void call(void (*kernel)(Parameters...), void **arguments, indices<Index...>) {
    kernel(*(Parameters *)arguments[Index]...);
}
template <class... Parameters>
EMULATOR_UNCOUNTED void call(void (*kernel)(Parameters...), void **arguments) {
    call(kernel, arguments, typename make_indices<sizeof...(Parameters)>::type());
}
template <class... Parameters>
int describe(void (*)(Parameters...), Parameter *out) {
    Parameter all[] = {
        {parameter_kind((Parameters *)nullptr), (int)sizeof(Parameters)}..., {0, 0}};
    for (unsigned i = 0; i < sizeof...(Parameters); i++) out[i] = all[i];
    return sizeof...(Parameters);
}

}  // namespace emulator

#if defined(EMULATOR_COUNT) && defined(__clang__) && !defined(__wasm__)
// Where gcc announces the copy of a structure, clang calls memcpy: this one, which announces it.
extern "C" EMULATOR_EXPORT void *emulator_copy(
    void *to, const void *from, size_t bytes, const void *pc);
extern "C" EMULATOR_UNCOUNTED void *memcpy(void *to, const void *from, size_t bytes) noexcept {
    return emulator_copy(to, from, bytes, __builtin_return_address(0));
}
#endif

#define EMULATOR_KERNEL(NAME, CLUSTER, BOUND)                                                  \
    extern "C" EMULATOR_EXPORT EMULATOR_UNCOUNTED void emulator_call_##NAME(void **arguments) { \
        emulator::call(NAME, arguments);                                                       \
    }                                                                                          \
    extern "C" EMULATOR_EXPORT int emulator_describe_##NAME(emulator::Parameter *out) {        \
        return emulator::describe(NAME, out);                                                  \
    }                                                                                          \
    extern "C" EMULATOR_EXPORT int emulator_cluster_##NAME() { return CLUSTER; }               \
    extern "C" EMULATOR_EXPORT int emulator_bound_##NAME() { return BOUND; }
