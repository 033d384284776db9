// What kernels need that run on several GPUs at once, as ranks 0 to R - 1 of one computation.
//
// With peer access (P2P), a GPU reads and writes the memory of another one by ordinary loads and
// stores: the address says whose memory it is, and a link (NVLink, PCIe) carries the bytes. What no
// load or store does is wait. So ranks agree by flags: one writes its data and then signals; the
// other waits for the signal and then reads the data.
//
//     inp[1][i]                       element i of rank 1's vector, wherever it is
//     signal_flag(&arrived[1][0], 1);      all that this thread did or knows of comes before it
//     wait_flag(&arrived[0][0], 1);        all that comes after it sees that
//
// PTX ISA, "Memory consistency model", scope .sys:
// https://docs.nvidia.com/cuda/parallel-thread-execution/
#pragma once

// The same buffer on each rank: its addresses, all valid on every GPU.
template <class T>
struct Peers {
    T* at[8];
    __device__ __forceinline__ T* operator[](int rank) const { return at[rank]; }
};

#ifdef KERNEL_LADDER_EMULATOR

__device__ __forceinline__ void signal_flag(unsigned* flag, unsigned value) {
    emulator::emulator_signal(flag, value);
}
__device__ __forceinline__ void wait_flag(const unsigned* flag, unsigned value) {
    emulator::emulator_wait(flag, value);
}
__device__ __forceinline__ void send_word(unsigned* slot, uint2 data, unsigned flag) {
    emulator::emulator_send_word(slot, data.x, data.y, flag);
}
__device__ __forceinline__ uint2 receive_word(const unsigned* slot, unsigned flag) {
    uint64_t data = emulator::emulator_receive_word(slot, flag);
    return {(unsigned)data, (unsigned)(data >> 32)};
}

#elif defined(__HIP__)

__device__ __forceinline__ void signal_flag(unsigned* flag, unsigned value) {
    __hip_atomic_store(flag, value, __ATOMIC_RELEASE, __HIP_MEMORY_SCOPE_SYSTEM);
}
__device__ __forceinline__ void wait_flag(const unsigned* flag, unsigned value) {
    while ((int)(__hip_atomic_load(flag, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM) - value) < 0);
}
__device__ __forceinline__ void send_word(unsigned* slot, uint2 data, unsigned flag) {
    auto halves = reinterpret_cast<unsigned long long*>(slot);
    unsigned long long high = (unsigned long long)flag << 32;
    __hip_atomic_store(halves, high | data.x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
    __hip_atomic_store(halves + 1, high | data.y, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
}
__device__ __forceinline__ uint2 receive_word(const unsigned* slot, unsigned flag) {
    auto halves = reinterpret_cast<const unsigned long long*>(slot);
    unsigned long long first, second;
    do {
        first = __hip_atomic_load(halves, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
        second = __hip_atomic_load(halves + 1, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM);
    } while (first >> 32 != flag || second >> 32 != flag);
    uint2 data;
    data.x = (unsigned)first, data.y = (unsigned)second;
    return data;
}

#else

// `st.release.sys`: writes a flag, which may be another GPU's. Whoever sees the value sees
// everything that this thread wrote or knew of before: after a __syncthreads, what its block did.
// The scope `sys` is all GPUs and the host; `gpu` would order nothing for another GPU.
__device__ __forceinline__ void signal_flag(unsigned* flag, unsigned value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

// `ld.acquire.sys` in a loop: returns once the flag has `value` or one beyond. The difference is
// taken as a signed number, so that a count that passes 2^32 goes on from 0. A rank waits on flags
// in its own memory, so that the loop keeps no link busy.
__device__ __forceinline__ void wait_flag(const unsigned* flag, unsigned value) {
    unsigned now;
    do {
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(now) : "l"(flag) : "memory");
    } while ((int)(now - value) < 0);
}

// `st.volatile.v4`: writes 8 bytes of data and their flag into a slot of 16 bytes, which may be
// another GPU's. Each half of a slot, 4 bytes of data and the flag, becomes visible as one. So the
// data needs no signal. Nothing else that this thread did is ordered by it.
// NCCL calls this protocol LL, low latency.
__device__ __forceinline__ void send_word(unsigned* slot, uint2 data, unsigned flag) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 ::"l"(slot), "r"(data.x), "r"(flag), "r"(data.y), "r"(flag) : "memory");
}

// `ld.volatile.v4` in a loop: waits until both halves of a slot have this flag; returns the data.
__device__ __forceinline__ uint2 receive_word(const unsigned* slot, unsigned flag) {
    uint2 data;
    unsigned first, second;
    do {
        asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(data.x), "=r"(first), "=r"(data.y), "=r"(second)
                     : "l"(slot) : "memory");
    } while (first != flag || second != flag);
    return data;
}

#endif

// A barrier of the blocks blockIdx.x of all R ranks: returns when each of them has come to it. All
// threads of the block call it. What any of these blocks did before, all of them see afterwards.
//
// arrived (BLOCKS, R) on each rank, 0 before the first launch: entry r of a row counts the barriers
// to which the block of rank r has come. Only rank r writes it. The counts go on from launch to
// launch, so that nothing has to be reset.
__device__ __forceinline__ void rank_barrier(Peers<unsigned> arrived, int R, int rank) {
    int row = blockIdx.x * R;
    unsigned count = arrived[rank][row + rank] + 1;
    __syncthreads();  // all have read the count, and their earlier accesses come before the signals
    if (threadIdx.x < R) {
        signal_flag(&arrived[threadIdx.x][row + rank], count);
        wait_flag(&arrived[rank][row + threadIdx.x], count);
    }
    __syncthreads();  // no thread goes on before all ranks have come
}
