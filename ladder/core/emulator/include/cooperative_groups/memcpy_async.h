// cooperative_groups::memcpy_async: the threads of a group copy together, and wait for it later.
#pragma once
#include "cooperative_groups.h"
#include "emulator/memcpy_async.h"

namespace cooperative_groups {

// `bytes`: how many, or an aligned_size_t of <cuda/barrier>. Each call is a group of copies.
template <class Group, class T, class Size>
__forceinline__ void memcpy_async(const Group &group, T *to, const T *from, const Size &bytes) {
    size_t piece = emulator::copy_alignment<T>(bytes);
    while (piece < 16 && ((uintptr_t)to | (uintptr_t)from | (size_t)bytes) % (2 * piece) == 0)
        piece *= 2;
    emulator::emulator_memcpy_async(nullptr, emulator::BARRIER, to, from, bytes, piece,
                                    group.thread_rank(), group.size());
    emulator::emulator_async_commit();
}
// The same, counted in elements: as many as there are on both sides.
template <class Group, class T, class To, class From>
__forceinline__ void memcpy_async(
    const Group &group, T *to, const To &room, const T *from, const From &given) {
    size_t count = (size_t)room < (size_t)given ? room : given;
    memcpy_async(group, to, from, count * sizeof(T));
}

// Waits for the copies of this group but those of the newest PRIOR calls.
template <unsigned PRIOR, class Group>
__forceinline__ void wait_prior(const Group &group) {
    emulator::emulator_async_wait(PRIOR);
    group.sync();
}
template <class Group>
__forceinline__ void wait(const Group &group) {
    wait_prior<0>(group);
}

}  // namespace cooperative_groups
