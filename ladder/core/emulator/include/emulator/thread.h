// What a kernel sees of the machine: its thread, its block, and the doors into the runtime.
//
// One GPU thread is one fiber: a stack of its own, on which the kernel is called like any C++
// function. A fiber runs until it meets a barrier or a warp operation; there it yields, and the
// scheduler (../../runtime/scheduler.cpp) goes on with the next one.
#pragma once
#include <stddef.h>
#include <stdint.h>

#include "emulator/vectors.h"

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    dim3(uint3 index) : x(index.x), y(index.y), z(index.z) {}
};

namespace emulator {

struct Thread {
    uint3 index;  // threadIdx
    int lane;     // position in the warp
    int warp;     // position of the warp in the block
};

struct Block {
    dim3 grid, block;
    uint3 index;  // blockIdx
    int warp_size;
};

// The thread and the block that this OS thread is running just now.
struct Current {
    Thread *thread;
    Block *block;
};
#define EMULATOR_EXPORT __attribute__((visibility("default")))
extern EMULATOR_EXPORT thread_local Current current __attribute__((tls_model("initial-exec")));

// Two calls must not become one, not even at the end of both branches of an if: divergence shows
// in that threads wait at different calls.
#if __has_attribute(nomerge)
#define EMULATOR_DISTINCT __attribute__((nomerge))
#else
#define EMULATOR_DISTINCT
#endif

// SYNC: all lanes are here; no memory is ordered, except by ORDER (__syncwarp). COALESCE waits for
// nobody: it returns the lanes that come to this call while the others wait elsewhere or are done.
enum WarpOperation {
    WARP_SYNC,
    WARP_ORDER,
    WARP_SHUFFLE,
    WARP_BALLOT,
    WARP_GATHER,
    WARP_COALESCE
};
enum Access { ACCESS_READ, ACCESS_WRITE, ACCESS_ATOMIC };

// Which library a barrier in shared memory belongs to: ladder/include/hopper.cuh, or cuda::barrier;
// or which of the two it is that each stage of a cuda::pipeline has.
enum BarrierKind { MBARRIER, BARRIER, STAGE_FILLED, STAGE_FREED };

enum Factors { BFLOAT16, FLOAT16, TFLOAT32 };  // the types that tensor cores multiply

// A `wgmma`: d (64, N) += A (64, K) * B (N, K)^T, where K is 32 bytes of factors: 16, or 8 of TF32.
// `a`, `b`: descriptors of operands in shared memory.
struct Wgmma {
    unsigned long long a, b;
    const unsigned *a_registers;  // this thread's four, instead of `a`; or null
    int columns;                  // N
    Factors factors;
    bool a_mn_major, b_mn_major, add;
};

extern "C" {
// Waits for every thread of the block; returns how many of them passed a predicate other than 0.
EMULATOR_EXPORT EMULATOR_DISTINCT int emulator_barrier(int predicate);
// Waits until all lanes of `mask` are here. SHUFFLE: returns lane `source`'s value. BALLOT: the
// lanes whose value is not 0. GATHER: the address of an array with every lane's value, valid until
// this lane's next warp operation.
EMULATOR_EXPORT EMULATOR_DISTINCT uint64_t emulator_warp(
    WarpOperation operation, uint64_t mask, uint64_t value, int source);
// Gives way to the other threads of the block: for loops that wait for something to change.
EMULATOR_EXPORT void emulator_poll();
// Memory of the running block. `key`: one address for each declaration, whatever its name.
EMULATOR_EXPORT void *emulator_shared(
    const void *key, const char *name, size_t bytes, size_t alignment);
EMULATOR_EXPORT void *emulator_dynamic_shared(const char *name, size_t alignment);
// The 32-bit address that PTX instructions use, and whose bits descriptors hold: the position in
// the block's shared memory, and the block's rank in its cluster from bit 24 on.
EMULATOR_EXPORT unsigned emulator_shared_address(const void *pointer);
// Atomics: *old = *address; and: if *address == *old, write *desired to it, else read it into *old.
EMULATOR_EXPORT void emulator_atomic_load(const void *address, void *old, int bytes);
EMULATOR_EXPORT bool emulator_compare_exchange(
    void *address, void *old, const void *desired, int bytes);
EMULATOR_EXPORT void emulator_fence();
EMULATOR_EXPORT long long emulator_clock();
EMULATOR_EXPORT int emulator_print(const char *format, ...) __attribute__((format(printf, 1, 2)));
EMULATOR_EXPORT void emulator_assert_failed(const char *expression);
// A flag in global memory: `wait` returns once it has `value` or one beyond, counted around 2^32.
EMULATOR_EXPORT void emulator_signal(unsigned *flag, unsigned value);
EMULATOR_EXPORT EMULATOR_DISTINCT void emulator_wait(const unsigned *flag, unsigned value);
// 8 bytes of data and a flag, in 16 bytes; `receive` returns the data once the flag is there.
EMULATOR_EXPORT void emulator_send_word(
    unsigned *slot, unsigned first, unsigned second, unsigned flag);
EMULATOR_EXPORT EMULATOR_DISTINCT uint64_t emulator_receive_word(
    const unsigned *slot, unsigned flag);
// `cp.async`: copies that a thread starts, groups and waits for; bytes from `given` on are 0.
EMULATOR_EXPORT EMULATOR_DISTINCT void emulator_async_copy(
    void *to, const void *from, int bytes, int given);
EMULATOR_EXPORT void emulator_async_commit();
EMULATOR_EXPORT void emulator_async_wait(int pending_groups);
// `wgmma`: one thread's part of it, `d`, is computed when the thread waits for it; until then it is
// NaN. `count`: the elements of d.
EMULATOR_EXPORT EMULATOR_DISTINCT void emulator_wgmma(float *d, int count, const Wgmma *wgmma);
EMULATOR_EXPORT void emulator_wgmma_fence();
EMULATOR_EXPORT void emulator_wgmma_commit();
EMULATOR_EXPORT void emulator_wgmma_wait(int pending_groups);
// Waits until `threads` threads of the block are at one of the named barriers 1 to 15, or all
// threads of the cluster at its barrier.
constexpr int CLUSTER_BARRIER = 16;
EMULATOR_EXPORT EMULATOR_DISTINCT void emulator_named_barrier(int id, int threads);
// The block's place in its cluster; where a variable in shared memory lies in another of its blocks.
EMULATOR_EXPORT int emulator_cluster_rank();
EMULATOR_EXPORT void *emulator_peer(const void *address, int rank);
// `mbarrier`: `rank` is that of the block at whose barrier the thread arrives, or -1 for its own.
EMULATOR_EXPORT EMULATOR_DISTINCT void emulator_mbarrier_arrive(void *barrier, int rank, int bytes);
// cuda::barrier; `init` and `wait_parity` also of an mbarrier. `arrive` returns a token of the
// phase in which it arrived; `drop`: and the phases that follow count one thread less. `users`: the
// threads of the pipeline that it belongs to.
EMULATOR_EXPORT EMULATOR_DISTINCT void emulator_barrier_init(
    void *barrier, long long count, BarrierKind kind, int users);
EMULATOR_EXPORT EMULATOR_DISTINCT uint64_t emulator_barrier_arrive(
    void *barrier, BarrierKind kind, long long threads, bool drop);
EMULATOR_EXPORT EMULATOR_DISTINCT void emulator_barrier_wait(void *barrier, uint64_t token);
EMULATOR_EXPORT EMULATOR_DISTINCT void emulator_barrier_wait_parity(
    void *barrier, BarrierKind kind, int parity);
// A thread leaves a pipeline; after the last one, its stages are no barriers any more.
EMULATOR_EXPORT void emulator_pipeline_quit(void *stages, int count);
// Adds to a number of the library's own in shared memory, and returns it.
EMULATOR_EXPORT unsigned emulator_count(unsigned *number, int more);
// The part of a memcpy_async that thread `rank` of a group of `threads` copies. `barrier`: the one
// that counts the copy, or null if the thread groups its copies and waits for them.
EMULATOR_EXPORT EMULATOR_DISTINCT void emulator_memcpy_async(
    void *barrier, BarrierKind kind, void *to, const void *from, size_t bytes, size_t alignment,
    unsigned rank, unsigned threads);
// The same of one piece of 4, 8 or 16 bytes, of which those from `given` on become 0.
EMULATOR_EXPORT EMULATOR_DISTINCT void emulator_memcpy_piece(
    void *to, const void *from, size_t bytes, size_t given);
// TMA. `blocks`: the ranks that a load writes to, as bits; 0: this block.
EMULATOR_EXPORT EMULATOR_DISTINCT void emulator_tile_load(
    void *tile, const void *map, void *barrier, int x, int y, int blocks);
EMULATOR_EXPORT EMULATOR_DISTINCT void emulator_tile_store(
    const void *map, const void *tile, int x, int y, bool add);
EMULATOR_EXPORT void emulator_tile_store_commit();
EMULATOR_EXPORT void emulator_tile_store_wait(int pending_groups);
EMULATOR_EXPORT void emulator_proxy_fence();
// Programmatic dependent launch: the kernel before has ended.
EMULATOR_EXPORT void emulator_wait_for_previous();
}

// The strictest of the alignments that a declaration asks for; without one, that of its type.
template <class... More>
constexpr size_t alignment(size_t first, More... more) {
    size_t strictest = first;
    ((strictest = (size_t)more > strictest ? (size_t)more : strictest), ...);
    return strictest;
}

}  // namespace emulator

// Constants, so that an assignment to one does not compile.
#define threadIdx ((const uint3 &)emulator::current.thread->index)
#define blockIdx ((const uint3 &)emulator::current.block->index)
#define blockDim ((const dim3 &)emulator::current.block->block)
#define gridDim ((const dim3 &)emulator::current.block->grid)
#define warpSize (emulator::current.block->warp_size)
