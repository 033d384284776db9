// `cp.async`: asynchronous copies from global to shared memory (sm_80 and later). The thread starts
// a copy, goes on, and waits for it later. With the copies of several stages (buffers) in flight
// this makes a multistage software pipeline.
//
//     cp_async_16(&tile[0][i], from + i);   // starts a copy of 16 bytes
//     cp_async_commit();                    // closes a group: all copies since the last commit
//     cp_async_wait<1>();                   // waits until at most 1 group is still in flight
//     __syncthreads();                      // a thread waits only for its own copies
//
// PTX ISA, "cp.async": https://docs.nvidia.com/cuda/parallel-thread-execution/
#pragma once

#ifdef KERNEL_LADDER_EMULATOR  // copies as late as allowed: without the wait, a read finds NaN

__device__ __forceinline__ void cp_async_16(void* shared, const void* global) {
    emulator::emulator_async_copy(shared, global, 16, 16);
}
__device__ __forceinline__ void cp_async_16_or_zero(void* shared, const void* global, bool copy) {
    emulator::emulator_async_copy(shared, global, 16, copy ? 16 : 0);
}
__device__ __forceinline__ void cp_async_commit() { emulator::emulator_async_commit(); }
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
    emulator::emulator_async_wait(PENDING);
}

#else

// `cp.async.cg`: starts a copy of 16 bytes; both addresses must be multiples of 16. `.cg` bypasses
// the L1 cache, where a tile that goes to shared memory would only take up space. Until the wait
// and the barrier, no thread may read or overwrite the destination.
__device__ __forceinline__ void cp_async_16(void* shared, const void* global) {
    unsigned to = (unsigned)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}

// The same if `copy`; otherwise writes 16 zero bytes and does not read `global`. For the elements
// of a tile that lie outside the matrix.
__device__ __forceinline__ void cp_async_16_or_zero(void* shared, const void* global, bool copy) {
    unsigned to = (unsigned)__cvta_generic_to_shared(shared);
    int bytes = copy ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes)
                 : "memory");
}

// `cp.async.commit_group`: all copies that this thread has started since its last commit form a
// group.
__device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// `cp.async.wait_group`: waits until at most PENDING groups of this thread are still in flight. A
// thread's wait covers only its own copies, so a block barrier must follow before others read them.
template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

#endif
