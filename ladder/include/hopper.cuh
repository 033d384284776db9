// What Hopper added (sm_90a): `mbarrier`, a barrier in shared memory that counts threads and bytes;
// the tensor memory accelerator (TMA), a unit that copies whole tiles; and `wgmma`, matrix products
// of a warpgroup (4 warps, 128 threads) on tensor cores. Together they make warp specialization:
// one thread, the producer, starts the copies; the warps of the consumer warpgroup multiply.
//
//     producer: one thread                        consumer: four warps
//     mbarrier_expect(&full, bytes);              mbarrier_wait(&full, phase);
//     tma_load_2d(tile, &map, &full, x, y);       wgmma_fence();
//                                                 wgmma_m64k16_bf16<128>(d, a, b);
//                                                 wgmma_commit(); wgmma_wait<0>();
//     mbarrier_wait(&empty, phase);               mbarrier_arrive(&empty);
//
// TMA writes tiles with the 128-byte swizzle, a permutation that avoids bank conflicts. A row has
// 128 bytes (64 elements of 16 bits), 8 rows form an atom of 1024 bytes, and in row r of an atom
// the 16-byte piece p lies at position p ^ r. A tile starts at a multiple of 1024 bytes.
//
// The blocks of a kernel with the attribute __cluster_dims__(COUNT, 1, 1) run in clusters of COUNT,
// on SMs (streaming multiprocessors) near each other. They can copy to each other's shared memory,
// read from it, and arrive at each other's barriers. No block may end while another still accesses
// its shared memory.
//
// PTX ISA, "mbarrier", "cp.async.bulk.tensor", "wgmma" (with the layouts of descriptors):
// https://docs.nvidia.com/cuda/parallel-thread-execution/
#pragma once

// A tensor map: describes an array and the tile (box) that TMA copies of it. Made on the host, and
// passed to a kernel as `const __grid_constant__ TensorMap map`.
struct alignas(64) TensorMap {
    unsigned long long opaque[16];
};

using Mbarrier = unsigned long long;  // in shared memory

// The 32-bit address of a variable in shared memory, as PTX instructions expect it. In a cluster,
// bits 24 and up hold the rank of the block.
__device__ __forceinline__ unsigned shared_address(const void* pointer);

// The descriptor of a matrix in shared memory, as `wgmma` reads it: address / 16, in 14 bits; the
// leading dimension byte offset, `block` bytes from 64 columns of a transposed matrix to the next 64
// (otherwise ignored); the stride byte offset, 1024 bytes from one group of 8 rows to the next;
// 128-byte swizzle. A rung that reads transposed matrices in a cluster needs `Define: IN_CLUSTER = 1`,
// which keeps the block's rank out of the offset, at the price of instructions in each loop.
__device__ __forceinline__ unsigned long long wgmma_descriptor(const void* tile, int block) {
#ifdef IN_CLUSTER
    unsigned low = (shared_address(tile) / 16 & 0x3fff) | block / 16 << 16;
#else
    unsigned low = shared_address(tile) / 16 + (block / 16 << 16);
#endif
    unsigned high = 1024 / 16 | 1 << 30;
#ifdef KERNEL_LADDER_EMULATOR
    return (unsigned long long)high << 32 | low;
#else
    unsigned long long both;  // made of halves: shifts would compute with all 64 bits
    asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "r"(low), "r"(high));
    return both;
#endif
}

#ifdef KERNEL_LADDER_EMULATOR
#include "emulator/hopper.h"
#else

// The cache policies of `createpolicy.fractional.L2::evict_first` and `evict_last`, for all lines.
constexpr unsigned long long EVICT_FIRST = 0x12f0000000000000;
constexpr unsigned long long EVICT_LAST = 0x14f0000000000000;

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return (unsigned)__cvta_generic_to_shared(pointer);
}

// `mbarrier.init`: makes a barrier. A phase of it ends when `count` threads have arrived and all
// expected bytes have been copied; then the next phase begins. One thread calls it. A __syncthreads
// must follow before any other thread uses the barrier.
__device__ __forceinline__ void mbarrier_init(Mbarrier* barrier, int count) {
    asm volatile(
        "mbarrier.init.shared::cta.b64 [%0], %1;\n"
        "fence.mbarrier_init.release.cluster;"  // makes it visible to TMA and to the cluster
        ::"r"(shared_address(barrier)), "r"(count) : "memory");
}

// `mbarrier.arrive`: this thread arrives, and does not wait. Its earlier reads and
// writes come before the end of the phase.
__device__ __forceinline__ void mbarrier_arrive(Mbarrier* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
                 : "memory");
}

// `mbarrier.arrive.expect_tx`: arrives, and the phase does not end before `bytes` more bytes have
// been copied.
__device__ __forceinline__ void mbarrier_expect(Mbarrier* barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
}

// `mapa`, `mbarrier.arrive.shared::cluster`: arrives at the same barrier in the shared memory of
// block `rank` of the cluster.
__device__ __forceinline__ void mbarrier_arrive_at(Mbarrier* barrier, int rank) {
    asm volatile(
        "{\n"
        ".reg .b32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
        "}" ::"r"(shared_address(barrier)), "r"(rank) : "memory");
}

// `%cluster_ctarank`: the index of this block in its cluster.
__device__ __forceinline__ int cluster_rank() {
    unsigned rank;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return (int)rank;
}

// `mapa`: the address of the same variable in the shared memory of block `rank` of the cluster, for
// reading (distributed shared memory).
template <class T>
__device__ __forceinline__ const T* cluster_shared(const T* pointer, int rank) {
    const T* there;
    asm("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(pointer), "r"(rank));
    return there;
}

// `barrier.cluster`: waits until all threads of the cluster have arrived. A kernel ends with it
// where one block may still access the shared memory of another.
__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

// `mbarrier.try_wait.parity`: waits until the phase with this parity has ended: 0 for the first
// phase, 1 for the second, 0 for the third ... On a new barrier, a wait for parity 1 returns at
// once, so a producer finds all stages empty at the start.
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

// `bar.sync`: waits until `threads` threads of the block (whole warps) have arrived at barrier
// `id`, 1 to 15. Barrier 0 is the one of __syncthreads.
__device__ __forceinline__ void named_barrier(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// `setmaxnreg`: the warps of a warpgroup give registers back, down to COUNT each, or wait until they
// have COUNT: so that those that sum have more of them than the one that copies. COUNT is a multiple
// of 8. All warps of the warpgroup call it; the block has whole warpgroups.
template <int COUNT>
__device__ __forceinline__ void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT>
__device__ __forceinline__ void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}

// `cp.async.bulk.tensor`: TMA copies a box of the array to `tile`; its first element is (row y,
// column x). Elements outside the array arrive as 0, and their bytes are counted too. One thread
// calls it. The tile may be read once the phase of `barrier` has ended, not before; and a copy may
// overwrite a tile only after all threads that read it have arrived at a barrier.
__device__ __forceinline__ void tma_load_2d(
    void* tile, const TensorMap* map, Mbarrier* barrier, int x, int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4}], [%2];"
        ::"r"(shared_address(tile)), "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y)
        : "memory");
}

// The same with `.multicast::cluster`: one read of the array fills the tile at the same address in
// several blocks of the cluster, those whose bit (1 << rank) is set in `blocks`. The barrier of
// each of these blocks counts the bytes.
__device__ __forceinline__ void tma_load_2d_multicast(
    void* tile, const TensorMap* map, Mbarrier* barrier, int x, int y, int blocks) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;"
        ::"r"(shared_address(tile)), "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y),
          "h"((short)blocks)
        : "memory");
}

// tma_load_2d to `.shared::cta`, the shared memory of this block, for kernels that run on sm_120 as
// well. There, a copy to `.shared::cluster` compiles to a branch with a call, and ptxas then ignores
// setmaxnreg.
__device__ __forceinline__ void tma_load_2d_cta(
    void* tile, const TensorMap* map, Mbarrier* barrier, int x, int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4}], [%2];"
        ::"r"(shared_address(tile)), "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y)
        : "memory");
}

// `cp.async.bulk.tensor`, from shared to global memory; elements outside the array are not stored.
// Before: every thread that wrote the tile calls tma_store_fence, then a barrier follows; otherwise
// TMA may read old values. After: tma_store_commit; and tma_store_wait before the tile changes or
// the block ends.
__device__ __forceinline__ void tma_store_2d(const TensorMap* map, const void* tile, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];"
                 ::"l"(map), "r"(shared_address(tile)), "r"(x), "r"(y) : "memory");
}

// The two copies with `.L2::cache_hint` evict_first: what is used only once leaves the L2 cache
// before what others use again.
__device__ __forceinline__ void tma_load_2d_evict_first(
    void* tile, const TensorMap* map, Mbarrier* barrier, int x, int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;"
        ::"r"(shared_address(tile)), "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y),
          "l"(EVICT_FIRST)
        : "memory");
}
__device__ __forceinline__ void tma_store_2d_evict_first(
    const TensorMap* map, const void* tile, int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group.L2::cache_hint "
                 "[%0, {%2, %3}], [%1], %4;"
                 ::"l"(map), "r"(shared_address(tile)), "r"(x), "r"(y), "l"(EVICT_FIRST)
                 : "memory");
}

// `cp.async.bulk.prefetch.tensor`: brings a box of the array into the L2 cache.
__device__ __forceinline__ void tma_prefetch_2d(const TensorMap* map, int x, int y) {
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];"
                 ::"l"(map), "r"(x), "r"(y));
}

// TMA reduce-add (`cp.reduce.async.bulk.tensor`): the L2 cache adds the tile, of float32, to the
// array.
__device__ __forceinline__ void tma_add_2d(const TensorMap* map, const void* tile, int x, int y) {
    asm volatile(
        "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3}], [%1];"
        ::"l"(map), "r"(shared_address(tile)), "r"(x), "r"(y) : "memory");
}
// The same with `.L2::cache_hint` evict_last: what is added to again stays in L2 longest.
__device__ __forceinline__ void tma_add_2d_evict_last(
    const TensorMap* map, const void* tile, int x, int y) {
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group"
                 ".L2::cache_hint [%0, {%2, %3}], [%1], %4;"
                 ::"l"(map), "r"(shared_address(tile)), "r"(x), "r"(y), "l"(EVICT_LAST)
                 : "memory");
}

// `fence.proxy.async`: what this thread has written to shared memory becomes visible to TMA.
__device__ __forceinline__ void tma_store_fence() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// `cp.async.bulk.commit_group`: the stores since the last commit form a group.
__device__ __forceinline__ void tma_store_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// `cp.async.bulk.wait_group.read`: waits until at most PENDING groups still read their tiles.
template <int PENDING>
__device__ __forceinline__ void tma_store_wait() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

// `wgmma.fence`: orders accesses to registers before the `wgmma` instructions that follow. Needed
// before the first one, and whenever other instructions have changed its registers.
__device__ __forceinline__ void wgmma_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// `wgmma.commit_group`: the `wgmma` instructions since the last commit form a group.
__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Emits no instruction. The compiler must have the final values in these registers here, and may
// not read or change them across this point.
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
// Emits no instruction. What follows from x is computed after this, each time: the compiler does not
// compute it once, before a loop, and keep it in registers.
__device__ __forceinline__ void compute_here(int& x) { asm volatile("" : "+r"(x)); }

// `wgmma.wait_group`: waits until at most PENDING groups are in flight. After that the accumulators
// `results` may be read. Without the wait they hold unfinished sums. Registers that are operands of
// a `wgmma` and were changed before it must be pinned before wgmma_fence.
template <int PENDING, class... Registers>
__device__ __forceinline__ void wgmma_wait(Registers&... results) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
    (wgmma_pin(results), ...);
}

// Lists of operands in the text of an instruction: %0 to %31, and so on.
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

// The `wgmma` instruction for N columns. LIST: the accumulators; REST: the operands after them.
#define WGMMA_SHARED(N, TYPE, LIST, REST, ...)                                                  \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" N "k16.f32." TYPE "." TYPE                 \
                 " {" LIST "}, " REST ";"                                                       \
                 : __VA_ARGS__                                                                  \
                 : "l"(x), "l"(y), "n"(A_MN_MAJOR), "n"(B_BLOCK > 0))

#define WGMMA(NAME, TYPE)                                                                       \
    template <int N, bool A_MN_MAJOR = false, int B_BLOCK = 0, bool ADD = true>                 \
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
// `wgmma.mma_async`: d (64, N) += A (64, 16) * B (N, 16)^T, asynchronously. All 128 threads of the
// warpgroup call it together. Both operands come from shared memory. They are K-major: a row of a
// tile holds 64 of the columns that are summed over, and the k-th step of 16 starts at 32 * k
// bytes. Thread t of the warpgroup holds in d[i] the element of row t / 32 * 16 + t % 32 / 4 + i /
// 2 % 2 * 8 and column i / 4 * 8 + t % 4 * 2 + i % 2. Without ADD, d is overwritten, and its old
// value ignored. Neither the tiles nor d may change before wgmma_wait.
//
// A (16, 64) or B (16, N) can also be transposed (MN-major): a tile then has 64 columns, and its
// rows are summed over. The k-th step starts at 2048 * k bytes, and the next 64 columns of B are
// B_BLOCK bytes further. A_MN_MAJOR and B_BLOCK > 0 select this.
//
// _registers: each warp has its 16 rows of A (64, 16) in registers, in the layout of A in mma.cuh.
// Columns 16 * k to 16 * k + 15 of an earlier d are d[8 * k] to d[8 * k + 7], rounded and packed in
// pairs.
WGMMA(wgmma_m64k16_bf16, "bf16")
WGMMA(wgmma_m64k16_fp16, "f16")
#undef WGMMA

#endif

// The warp arrives once, when all of its lanes have finished with what the barrier guards.
__device__ __forceinline__ void mbarrier_arrive_warp(Mbarrier* barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
}

// A position in a ring of SIZE buffers, and the parity of its phase: it flips with every round.
template <int SIZE>
struct Ring {
    int index = 0, parity = 0;
    __device__ __forceinline__ void next() {
        if (++index == SIZE) index = 0, parity ^= 1;
    }
};
