// Questions about types that the functions of a GPU ask, which not every type has.
#pragma once

namespace emulator {

template <class T, class Other>
constexpr bool is_same = false;
template <class T>
constexpr bool is_same<T, T> = true;
template <class T, class... Types>
constexpr bool is_one_of = (is_same<T, Types> || ...);
template <class Format>
struct Narrow;
template <class Format>
struct NarrowPair;
template <class T>
constexpr bool is_narrow = false;
template <class Format>
constexpr bool is_narrow<Narrow<Format>> = true;
template <class Format>
constexpr bool is_narrow<NarrowPair<Format>> = true;
struct type_of_16_bits;  // among others: any of them
template <class T>
constexpr bool is_same<T, type_of_16_bits> = is_narrow<T>;

template <class T>
constexpr bool is_pointer = false;
template <class T>
constexpr bool is_pointer<T *> = true;
// What one instruction can shuffle.
template <class T>
constexpr bool is_number = is_narrow<T> || !(__is_class(T) || __is_union(T) || is_pointer<T>);

}  // namespace emulator
