// Barriers, shuffles, votes and reductions: where the threads of a block or warp meet.
#pragma once
#include "emulator/thread.h"
#include "emulator/types.h"

__forceinline__ void __syncthreads() { emulator::emulator_barrier(0); }
__forceinline__ int __syncthreads_count(int predicate) {
    return emulator::emulator_barrier(predicate);
}
__forceinline__ int __syncthreads_or(int predicate) {
    return emulator::emulator_barrier(predicate) != 0;
}
__forceinline__ int __syncthreads_and(int predicate) {
    return emulator::emulator_barrier(!predicate) == 0;
}
__forceinline__ void __syncwarp(uint64_t mask = ~0ull) {
    emulator::emulator_warp(emulator::WARP_ORDER, mask, 0, 0);
}

namespace emulator {

// The value of lane `source`, of any size: 8 bytes at a time.
template <class T>
__forceinline__ T shuffle_words(uint64_t mask, T value, int source) {
    uint64_t words[(sizeof(T) + 7) / 8] = {};
    __builtin_memcpy(words, &value, sizeof value);
    for (uint64_t &word : words) word = emulator_warp(WARP_SHUFFLE, mask, word, source);
    __builtin_memcpy(&value, words, sizeof value);
    return value;
}

template <class T>
__forceinline__ T shuffle(uint64_t mask, T value, int source) {
    static_assert(is_number<T> && sizeof(T) <= 8,
                  "a shuffle moves a number of at most 8 bytes: shuffle the elements of a "
                  "structure one by one");
    return shuffle_words(mask, value, source);
}

// Lanes [first, first + width) of the group of `width` lanes that this lane is in.
struct Group {
    int lane, first, last;
    __forceinline__ explicit Group(int width)
        : lane(current.thread->lane), first(lane & -width), last(first + width - 1) {}
    // A lane outside the group stands for: keep your own value.
    __forceinline__ int clamp(int source) const {
        return source < first || source > last ? lane : source;
    }
};

// The lanes that this warp has: the last warp of a block may be a partial one.
__forceinline__ uint64_t existing_lanes() {
    const dim3 &block = current.block->block;
    int width = current.block->warp_size;
    int count = block.x * block.y * block.z - current.thread->warp * width;
    return ~0ull >> (64 - (count < width ? count : width));
}

// What every lane of the warp passes: an array by lane.
template <class T>
__forceinline__ T *const *show(T *mine) {
    return (T *const *)emulator_warp(WARP_GATHER, ~0ull, (uint64_t)mine, 0);
}

// Combines the values of all lanes in the mask, in the order of the lanes.
template <class T, class Combine>
__forceinline__ T reduce(uint64_t mask, T value, Combine combine) {
    uint64_t bits = 0;
    __builtin_memcpy(&bits, &value, sizeof value);
    const uint64_t *values = (const uint64_t *)emulator_warp(WARP_GATHER, mask, bits, 0);
    mask &= existing_lanes();
    T result = (T)values[__builtin_ctzll(mask)];
    for (mask &= mask - 1; mask; mask &= mask - 1)
        result = combine(result, (T)values[__builtin_ctzll(mask)]);
    return result;
}

// The lanes of the mask that pass the same bits as this one.
template <class T>
__forceinline__ uint64_t match(uint64_t mask, T value) {
    static_assert(!__is_class(T) && !__is_union(T) && (sizeof(T) == 4 || sizeof(T) == 8),
                  "__match_any_sync and __match_all_sync compare numbers of 4 or 8 bytes");
    uint64_t bits = 0, same = 0;
    __builtin_memcpy(&bits, &value, sizeof value);
    const uint64_t *values = (const uint64_t *)emulator_warp(WARP_GATHER, mask, bits, 0);
    for (uint64_t rest = mask & existing_lanes(); rest; rest &= rest - 1)
        if (values[__builtin_ctzll(rest)] == bits) same |= rest & -rest;
    return same;
}

}  // namespace emulator

template <class T>
__forceinline__ T __shfl_sync(uint64_t mask, T value, int source, int width = warpSize) {
    return emulator::shuffle(mask, value, emulator::Group(width).first + (source & (width - 1)));
}
#define EMULATOR_SHUFFLE(NAME, BY, SOURCE)                                                     \
    template <class T>                                                                        \
    __forceinline__ T NAME(uint64_t mask, T value, BY by, int width = warpSize) {              \
        emulator::Group group(width);                                                         \
        return emulator::shuffle(mask, value, group.clamp(SOURCE));                           \
    }
EMULATOR_SHUFFLE(__shfl_xor_sync, int, group.lane ^ by)
EMULATOR_SHUFFLE(__shfl_down_sync, unsigned, group.lane + (int)by)
EMULATOR_SHUFFLE(__shfl_up_sync, unsigned, group.lane - (int)by)
#undef EMULATOR_SHUFFLE

__forceinline__ uint64_t __ballot_sync(uint64_t mask, int predicate) {
    return emulator::emulator_warp(emulator::WARP_BALLOT, mask, predicate != 0, 0);
}
__forceinline__ int __any_sync(uint64_t mask, int predicate) {
    return __ballot_sync(mask, predicate) != 0;
}
__forceinline__ int __all_sync(uint64_t mask, int predicate) {
    return __ballot_sync(mask, !predicate) == 0;
}
template <class T>
__forceinline__ uint64_t __match_any_sync(uint64_t mask, T value) {
    return emulator::match(mask, value);
}
template <class T>
__forceinline__ uint64_t __match_all_sync(uint64_t mask, T value, int *predicate) {
    mask &= emulator::existing_lanes();
    *predicate = emulator::match(mask, value) == mask;
    return *predicate ? mask : 0;
}
// The lanes that come to this call while the others wait elsewhere or have returned.
__forceinline__ uint64_t __activemask() {
    return emulator::emulator_warp(emulator::WARP_COALESCE, ~0ull, 0, 0);
}

#define EMULATOR_REDUCTION(NAME, TYPE, EXPRESSION)                                  \
    __forceinline__ TYPE NAME(uint64_t mask, TYPE value) {                          \
        return emulator::reduce(mask, value, [](TYPE a, TYPE b) -> TYPE { return EXPRESSION; }); \
    }
EMULATOR_REDUCTION(__reduce_add_sync, unsigned, a + b)
EMULATOR_REDUCTION(__reduce_add_sync, int, a + b)
EMULATOR_REDUCTION(__reduce_min_sync, unsigned, a < b ? a : b)
EMULATOR_REDUCTION(__reduce_min_sync, int, a < b ? a : b)
EMULATOR_REDUCTION(__reduce_max_sync, unsigned, a > b ? a : b)
EMULATOR_REDUCTION(__reduce_max_sync, int, a > b ? a : b)
EMULATOR_REDUCTION(__reduce_and_sync, unsigned, a & b)
EMULATOR_REDUCTION(__reduce_or_sync, unsigned, a | b)
EMULATOR_REDUCTION(__reduce_xor_sync, unsigned, a ^ b)
#undef EMULATOR_REDUCTION

__forceinline__ void __threadfence() { emulator::emulator_fence(); }
__forceinline__ void __threadfence_system() { emulator::emulator_fence(); }
__forceinline__ void __threadfence_block() {}
__forceinline__ void __nanosleep(unsigned) { emulator::emulator_poll(); }
__forceinline__ void __trap() { emulator::emulator_assert_failed("__trap()"); }
__forceinline__ long long clock64() { return emulator::emulator_clock(); }
__forceinline__ int clock() { return (int)emulator::emulator_clock(); }

// The spellings of HIP, which have no mask: every lane of the warp takes part.
#define EMULATOR_WITHOUT_MASK(NAME)                                       \
    template <class T, class By>                                          \
    __forceinline__ T NAME(T value, By by, int width = warpSize) {        \
        return NAME##_sync(~0ull, value, by, width);                      \
    }
EMULATOR_WITHOUT_MASK(__shfl)
EMULATOR_WITHOUT_MASK(__shfl_xor)
EMULATOR_WITHOUT_MASK(__shfl_down)
EMULATOR_WITHOUT_MASK(__shfl_up)
#undef EMULATOR_WITHOUT_MASK
