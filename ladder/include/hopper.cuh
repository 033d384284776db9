// What Hopper added (sm_90a): barriers in shared memory that count bytes, copies of whole tiles by
// the tensor memory accelerator (TMA), and matrix products by a warpgroup of 128 threads (wgmma).
//
//     one thread                                  four warps
//     mbarrier_expect(&full, bytes);              mbarrier_wait(&full, phase);
//     tma_load_2d(tile, &map, &full, x, y);       wgmma_fence();
//                                                 wgmma_m64k16_bf16<128>(d, a, b);
//                                                 wgmma_commit(); wgmma_wait<0>();
//     mbarrier_wait(&empty, phase);               mbarrier_arrive(&empty);
//
// Tiles are as TMA's 128-byte swizzle lays them down: rows of 128 bytes (64 elements of 16 bits), of
// which 8 form an atom of 1024 bytes; in row r of it, the 16-byte piece p lies at place p ^ r. A
// tile starts at a multiple of 1024 bytes.
//
// Blocks of a kernel with the attribute __cluster_dims__(COUNT, 1, 1) run COUNT at a time on
// multiprocessors near each other. They can copy to each other's shared memory, read from it, and
// arrive at each other's barriers; none may end while another still does so with its own.
//
// PTX ISA, "mbarrier", "cp.async.bulk.tensor", "wgmma": the layouts of descriptors are there too.
// https://docs.nvidia.com/cuda/parallel-thread-execution/
#pragma once

// A tile map, passed to a kernel as `const __grid_constant__ TensorMap map`. Made on the host.
struct alignas(64) TensorMap {
    unsigned long long opaque[16];
};

using Mbarrier = unsigned long long;  // in shared memory

#ifdef KERNEL_LADDER_EMULATOR
#include "emulator/hopper.h"
#else

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return (unsigned)__cvta_generic_to_shared(pointer);
}

// A new barrier, whose phase 0 ends when `count` threads have arrived and all expected bytes are
// there. One thread does it; __syncthreads before anyone else touches the barrier.
__device__ __forceinline__ void mbarrier_init(Mbarrier* barrier, int count) {
    asm volatile(
        "mbarrier.init.shared::cta.b64 [%0], %1;\n"
        "fence.mbarrier_init.release.cluster;"  // and TMA sees it too
        ::"r"(shared_address(barrier)), "r"(count) : "memory");
}

__device__ __forceinline__ void mbarrier_arrive(Mbarrier* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

// Arrives, and lets the phase last until `bytes` more have been copied.
__device__ __forceinline__ void mbarrier_expect(Mbarrier* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

// Arrives at the barrier of the same name in another block of the cluster.
__device__ __forceinline__ void mbarrier_arrive_at(Mbarrier* barrier, int rank) {
    asm volatile(
        "{\n"
        ".reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
        "}" ::"r"(shared_address(barrier)), "r"(rank) : "memory");
}

// The block's place in its cluster.
__device__ __forceinline__ int cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return (int)rank;
}

// Where the same variable lies in the shared memory of another block of the cluster: to be read.
template <class T>
__device__ __forceinline__ const T* cluster_shared(const T* pointer, int rank) {
    const T* there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(pointer), "r"(rank));
    return there;
}

// Waits for all threads of the cluster.
__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// Waits for the end of the phase with this parity: 0 for the first, 1 for the second, 0 again ...
// A wait for parity 1 on a new barrier returns at once.
__device__ __forceinline__ void mbarrier_wait(Mbarrier* barrier, int parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "AGAIN%=:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra DONE%=;\n"
        "bra AGAIN%=;\n"
        "DONE%=:\n"
        "}" ::"r"(shared_address(barrier)), "r"(parity) : "memory");
}

// Waits for `threads` threads of the block (whole warps) at the barrier `id`, 1 to 15.
__device__ __forceinline__ void named_barrier(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Copies the map's box, whose first element is (row y, column x), to `tile`. What is outside of the
// array arrives as 0, and counts as bytes all the same.
__device__ __forceinline__ void tma_load_2d(
    void* tile, const TensorMap* map, Mbarrier* barrier, int x, int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4}], [%2];"
        ::"r"(shared_address(tile)), "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y)
        : "memory");
}

// The same to the same place in several blocks of the cluster, bit r of `blocks` for rank r; each
// block's own barrier counts the bytes.
__device__ __forceinline__ void tma_load_2d_multicast(
    void* tile, const TensorMap* map, Mbarrier* barrier, int x, int y, int blocks) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;"
        ::"r"(shared_address(tile)), "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y),
          "h"((short)blocks)
        : "memory");
}

// The way back. Before: tma_store_fence by every thread that wrote the tile, then a barrier. After:
// tma_store_commit, and tma_store_wait before the tile changes, or the block ends.
__device__ __forceinline__ void tma_store_2d(const TensorMap* map, const void* tile, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];"
                 ::"l"(map), "r"(shared_address(tile)), "r"(x), "r"(y) : "memory");
}

// The same, but L2 adds the tile, of float32, to what is there.
__device__ __forceinline__ void tma_add_2d(const TensorMap* map, const void* tile, int x, int y) {
    asm volatile(
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3}], [%1];"
        ::"l"(map), "r"(shared_address(tile)), "r"(x), "r"(y) : "memory");
}

__device__ __forceinline__ void tma_store_fence() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void tma_store_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until at most PENDING groups still read their tiles.
template <int PENDING>
__device__ __forceinline__ void tma_store_wait() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// The compiler may not use these registers earlier than here, nor change them later.
template <int SIZE>
__device__ __forceinline__ void wgmma_pin(float (&registers)[SIZE]) {
#pragma unroll
    for (int i = 0; i < SIZE; i++) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int SIZE>
__device__ __forceinline__ void wgmma_pin(unsigned (&registers)[SIZE][4]) {
#pragma unroll
    for (int i = 0; i < 4 * SIZE; i++) asm volatile("" : "+r"(registers[i / 4][i % 4])::"memory");
}
// Waits until at most PENDING groups of products are under way; `results` are there then. What is
// an operand of a product, and changed before it, is to be pinned before wgmma_fence.
template <int PENDING, class... Registers>
__device__ __forceinline__ void wgmma_wait(Registers&... results) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
    (wgmma_pin(results), ...);
}

// Where a matrix lies: address / 16, `block` bytes from 64 columns of a transposed one to the next 64
// (otherwise ignored), 1024 bytes from one group of 8 rows to the next, swizzle 128.
__device__ __forceinline__ unsigned long long wgmma_descriptor(const void* tile, int block) {
    unsigned low = shared_address(tile) / 16 + (block / 16 << 16), high = 1024 / 16 | 1 << 30;
    unsigned long long both;  // in halves: by shifts the compiler computes with all 64 bits
    asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "r"(low), "r"(high));
    return both;
}

// Lists of registers: %0 to %31, and so on.
#define WGMMA_10(T) "%" T "0, %" T "1, %" T "2, %" T "3, %" T "4, %" T "5, %" T "6, %" T "7, %" T "8, %" T "9"
#define WGMMA_R32 WGMMA_10("") ", " WGMMA_10("1") ", " WGMMA_10("2") ", %30, %31"
#define WGMMA_R64 \
    WGMMA_R32 ", %32, %33, %34, %35, %36, %37, %38, %39, " WGMMA_10("4") ", " WGMMA_10("5") ", %60, %61, %62, %63"
#define WGMMA_R96 \
    WGMMA_R64 ", %64, %65, %66, %67, %68, %69, " WGMMA_10("7") ", " WGMMA_10("8") ", %90, %91, %92, %93, %94, %95"
#define WGMMA_R128                                                                              \
    WGMMA_R96 ", %96, %97, %98, %99, " WGMMA_10("10") ", " WGMMA_10("11")                         \
    ", %120, %121, %122, %123, %124, %125, %126, %127"
#define WGMMA_8(HOW, i)                                                                         \
    HOW(d[i]), HOW(d[i + 1]), HOW(d[i + 2]), HOW(d[i + 3]), HOW(d[i + 4]), HOW(d[i + 5]),         \
        HOW(d[i + 6]), HOW(d[i + 7])
#define WGMMA_32(HOW, i)                                                                        \
    WGMMA_8(HOW, i), WGMMA_8(HOW, i + 8), WGMMA_8(HOW, i + 16), WGMMA_8(HOW, i + 24)
#define WGMMA_F32(i) WGMMA_32("+f", i)

// The instruction for N columns, whose results are LIST. REST: the operands after them, by number.
#define WGMMA_SHARED(N, TYPE, LIST, REST, ...)                                                  \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE                 \
                 " {" LIST "}, " REST ";"                                                       \
                 : __VA_ARGS__                                                                  \
                 : "l"(x), "l"(y), "n"(A_ACROSS), "n"(B_BLOCK > 0))

#define WGMMA(NAME, TYPE)                                                                       \
    template <int N, bool A_ACROSS = false, int B_BLOCK = 0, bool ADD = true>                   \
    __device__ __forceinline__ void NAME(float (&d)[N / 2], const void* a, const void* b) {     \
        static_assert(N == 64 || N == 128 || N == 192 || N == 256, "wgmma: N is 64 to 256");    \
        static_assert(N == 64 || ADD, "wgmma that overwrites is 64 wide here");                 \
        unsigned long long x = wgmma_descriptor(a, 0), y = wgmma_descriptor(b, B_BLOCK);        \
        if constexpr (!ADD) {                                                                   \
            WGMMA_SHARED("64", TYPE, WGMMA_R32, "%32, %33, 0, 1, 1, %34, %35",                  \
                         WGMMA_32("=f", 0));                                                    \
        } else if constexpr (N == 64) {                                                         \
            WGMMA_SHARED("64", TYPE, WGMMA_R32, "%32, %33, 1, 1, 1, %34, %35", WGMMA_F32(0));   \
        } else if constexpr (N == 128) {                                                        \
            WGMMA_SHARED("128", TYPE, WGMMA_R64, "%64, %65, 1, 1, 1, %66, %67",                 \
                         WGMMA_F32(0), WGMMA_F32(32));                                          \
        } else if constexpr (N == 192) {                                                        \
            WGMMA_SHARED("192", TYPE, WGMMA_R96, "%96, %97, 1, 1, 1, %98, %99",                 \
                         WGMMA_F32(0), WGMMA_F32(32), WGMMA_F32(64));                           \
        } else {                                                                                \
            WGMMA_SHARED("256", TYPE, WGMMA_R128, "%128, %129, 1, 1, 1, %130, %131",            \
                         WGMMA_F32(0), WGMMA_F32(32), WGMMA_F32(64), WGMMA_F32(96));            \
        }                                                                                       \
    }                                                                                           \
    template <int N, int B_BLOCK = 0>                                                           \
    __device__ __forceinline__ void NAME##_registers(float (&d)[N / 2],                         \
                                                     const unsigned (&a)[4], const void* b) {   \
        static_assert(N == 64, "wgmma with A in registers is 64 wide here");                    \
        unsigned long long y = wgmma_descriptor(b, B_BLOCK);                                    \
        asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." TYPE "." TYPE                \
                     " {" WGMMA_R32 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, %37;"               \
                     : WGMMA_F32(0)                                                             \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(y), "n"(B_BLOCK > 0));   \
    }
// d (64, N) += A (64, 16) * B (N, 16)^T, both from shared memory, 16 of the 64 columns of a tile:
// the k-th step of 16 starts at 32 * k bytes. Thread t of the warpgroup holds in d[i] the element
// of row t / 32 * 16 + t % 32 / 4 + i / 2 % 2 * 8 and column i / 4 * 8 + t % 4 * 2 + i % 2. Without
// ADD, d is overwritten, whatever was in it.
//
// A (16, 64) or B (16, N) can also lie across, in tiles of 64 columns whose rows are summed over: then
// the k-th step starts at 2048 * k bytes, and B's next 64 columns are B_BLOCK bytes further.
//
// _registers: each warp has its 16 rows of A (64, 16) in registers, as mma.cuh lays them out: columns
// 16 * k to 16 * k + 15 of an earlier d are d[8 * k] to d[8 * k + 7], rounded and packed in pairs.
WGMMA(wgmma_m64k16_bf16, "bf16")
WGMMA(wgmma_m64k16_fp16, "f16")
#undef WGMMA

#endif
