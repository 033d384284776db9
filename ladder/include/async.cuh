// Copies from global to shared memory that go on while the thread computes (sm_80 and later).
//
//     cp_async_16(&tile[0][i], from + i);   // starts: 16 bytes, both addresses multiples of 16
//     cp_async_commit();                    // what was started since the last commit is a group
//     cp_async_wait<1>();                   // waits until at most 1 group is still under way
//     __syncthreads();                      // each thread waited for its own copies only
//
// PTX ISA, "cp.async": https://docs.nvidia.com/cuda/parallel-thread-execution/
#pragma once

#ifdef KERNEL_LADDER_EMULATOR  // a copy is made as late as allowed: without a wait, there is NaN

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

// .cg: past the L1 cache, in which a tile that goes to shared memory would only take up room.
__device__ __forceinline__ void cp_async_16(void* shared, const void* global) {
    unsigned to = (unsigned)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}

// Writes 16 zero bytes, and does not touch `global`, unless `copy`: for what is past an edge.
__device__ __forceinline__ void cp_async_16_or_zero(void* shared, const void* global, bool copy) {
    unsigned to = (unsigned)__cvta_generic_to_shared(shared);
    int bytes = copy ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes)
                 : "memory");
}

__device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int PENDING>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

#endif
