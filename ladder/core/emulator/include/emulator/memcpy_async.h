// What cuda::memcpy_async and cooperative_groups::memcpy_async have in common; the copies themselves
// are in ../../runtime/memcpy_async.cpp.
#pragma once
#include "emulator/thread.h"

namespace std {  // which NVRTC and nvcc have without a header

template <class T>
struct remove_reference {
    using type = T;
};
template <class T>
struct remove_reference<T &> {
    using type = T;
};
template <class T>
constexpr typename remove_reference<T>::type &&move(T &&value) {
    return static_cast<typename remove_reference<T>::type &&>(value);
}

}  // namespace std

namespace emulator {

template <class T>
constexpr size_t alignment_of = alignof(T);
template <>
inline constexpr size_t alignment_of<void> = 1;

// What a copy of T may assume of both addresses and of its size: `aligned_size_t` promises more.
template <class T, class Size>
constexpr auto copy_alignment(const Size &) -> decltype(Size::align) {
    return Size::align > alignment_of<T> ? Size::align : alignment_of<T>;
}
template <class T>
constexpr size_t copy_alignment(size_t) {
    return alignment_of<T>;
}

}  // namespace emulator
