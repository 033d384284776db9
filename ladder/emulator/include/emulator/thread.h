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

enum WarpOperation { WARP_SYNC, WARP_SHUFFLE, WARP_BALLOT, WARP_GATHER };
enum Access { ACCESS_READ, ACCESS_WRITE, ACCESS_ATOMIC };
using Multiply = void (*)(float *d, const void *payload);

extern "C" {
// Waits for every thread of the block; returns how many of them passed a predicate other than 0.
EMULATOR_EXPORT EMULATOR_DISTINCT int emulator_barrier(int predicate);
// Waits until all lanes of `mask` are here. SHUFFLE: returns lane `source`'s value. BALLOT: the
// lanes whose value is not 0. GATHER: the address of an array with every lane's value, valid until
// this lane's next warp operation.
EMULATOR_EXPORT EMULATOR_DISTINCT uint64_t emulator_warp(
    WarpOperation operation, uint64_t mask, uint64_t value, int source);
EMULATOR_EXPORT uint64_t emulator_active_mask();
// Gives way to the other threads of the block: for loops that wait for something to change.
EMULATOR_EXPORT void emulator_poll();
// Memory of the running block. `key`: one address for each declaration, whatever its name.
EMULATOR_EXPORT void *emulator_shared(const void *key, const char *name, size_t bytes);
EMULATOR_EXPORT void *emulator_dynamic_shared(const char *name);
// Atomics: *old = *address; and: if *address == *old, write *desired to it, else read it into *old.
EMULATOR_EXPORT void emulator_atomic_load(const void *address, void *old, int bytes);
EMULATOR_EXPORT bool emulator_compare_exchange(
    void *address, void *old, const void *desired, int bytes);
EMULATOR_EXPORT void emulator_fence();
EMULATOR_EXPORT long long emulator_clock();
EMULATOR_EXPORT int emulator_print(const char *format, ...) __attribute__((format(printf, 1, 2)));
EMULATOR_EXPORT void emulator_assert_failed(const char *expression);
// Copies that a thread starts, groups and waits for; bytes from `given` on are 0.
EMULATOR_EXPORT void emulator_async_copy(void *to, const void *from, int bytes, int given);
EMULATOR_EXPORT void emulator_async_commit();
EMULATOR_EXPORT void emulator_async_wait(int pending_groups);
// Matrix products of a warpgroup, one thread's part: started, grouped and waited for. Until then d
// is NaN, and `multiply(its value, payload)` comes as late as that.
EMULATOR_EXPORT void emulator_product(
    float *d, int count, Multiply multiply, const void *payload, size_t payload_bytes);
EMULATOR_EXPORT void emulator_product_commit();
EMULATOR_EXPORT void emulator_product_wait(int pending_groups);
// What one thread did before a release is seen by those that acquire after it.
EMULATOR_EXPORT void emulator_release();
EMULATOR_EXPORT void emulator_acquire();
// Counts a thread at one of the 16 named barriers, or at that of all threads of the cluster, whatever
// `threads` is; returns how often it had opened before.
constexpr int CLUSTER_BARRIER = 16;
EMULATOR_EXPORT int emulator_named_barrier(int id, int threads);
EMULATOR_EXPORT int emulator_named_barrier_generation(int id);
// The block's place in its cluster; where a variable in shared memory lies in another of its blocks.
EMULATOR_EXPORT int emulator_cluster_rank();
EMULATOR_EXPORT void *emulator_peer(const void *address, int rank);
// Shared memory that was written by no thread but by the hardware.
EMULATOR_EXPORT void emulator_written(void *address, size_t bytes);
// Runs `action(payload)` later, when no thread of the block can go on without it: what the GPU
// does asynchronously is thus done as late as a program may have to wait for it.
EMULATOR_EXPORT void emulator_defer(
    void (*action)(void *), const void *payload, size_t payload_bytes);
// The same for copies out of shared memory, in groups: run when this thread waits for its group.
EMULATOR_EXPORT void emulator_store(
    void (*action)(void *), const void *payload, size_t payload_bytes);
EMULATOR_EXPORT void emulator_store_commit();
EMULATOR_EXPORT void emulator_store_wait(int pending_groups);
}

}  // namespace emulator

#define threadIdx (emulator::current.thread->index)
#define blockIdx (emulator::current.block->index)
#define blockDim (emulator::current.block->block)
#define gridDim (emulator::current.block->grid)
#define warpSize (emulator::current.block->warp_size)
