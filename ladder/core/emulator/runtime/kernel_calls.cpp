// The functions of emulator/thread.h: what kernels call. They run on a fiber's stack.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "scheduler.h"

using namespace emulator;

static constexpr size_t MOST_STATIC = 48 << 10;  // bytes of shared memory that are not dynamic

template <class T>
static bool compare_exchange(void *address, void *old, const void *desired) {
    T value;
    std::memcpy(&value, desired, sizeof value);
    return __atomic_compare_exchange_n((T *)address, (T *)old, value, false, __ATOMIC_SEQ_CST,
                                       __ATOMIC_SEQ_CST);
}

uint64_t Worker::at_warp(WarpOperation operation, uint64_t mask, uint64_t value, int source,
                         const void *pc) {
    Fiber &fiber = this->fiber();
    fiber.operation = operation;
    fiber.mask = mask;
    fiber.value = value;
    fiber.source = source % warp_size;
    yield(State::at_warp, pc);
    return fiber.result;
}

SharedPlace Worker::find_shared(const void *address) const {
    for (size_t member = 0; member < members.size(); member++) {
        if (!members[member]->shared.contains(address)) continue;
        size_t offset = (const char *)address - members[member]->shared.begin;
        return {(int)member, layout.find(offset), offset};
    }
    return {-1, nullptr, 0};
}

char *Worker::shared_array(const void *key, const char *name, size_t bytes, size_t alignment,
                           const void *pc) {
    const SharedArray *array = layout.find(key);
    if (!array) {
        size_t before = layout.end();
        array = &layout.add(key, name, bytes, alignment);
        // What the launch asks for counts from its start, used or not.
        size_t fixed = layout.fixed_bytes(), dynamic = launch->options->shared_bytes;
        if (fixed > MOST_STATIC)
            refuse(SHARED_LIMIT, pc,
                   "%zu bytes of shared memory of fixed size, and %zu are possible: declare an "
                   "array as extern __shared__, and give its bytes in the launch",
                   fixed, MOST_STATIC);
        if (fixed + dynamic > launch->options->shared_limit)
            refuse(SHARED_LIMIT, pc,
                   "%zu bytes of shared memory, %zu of them of fixed size and %zu dynamic, and a "
                   "block can have %zu: use smaller tiles",
                   fixed + dynamic, fixed, dynamic, (size_t)launch->options->shared_limit);
        for (auto &member : members) member->shared.clear(before, layout.end());
    }
    return member().shared.begin + array->offset;
}

int emulator::emulator_barrier(int predicate) {
    Worker &worker = *this_worker;
    worker.fiber().predicate = predicate;
    int block = worker.fiber().member;
    unsigned phase = worker.member().meetings;
    worker.note("meets", "__syncthreads", block, phase, CALLER);
    worker.yield(State::at_barrier, CALLER);
    worker.note("waited", "__syncthreads", block, phase, CALLER);
    return worker.member().barrier_result;
}

uint64_t emulator::emulator_warp(WarpOperation operation, uint64_t mask, uint64_t value,
                                 int source) {
    return this_worker->at_warp(operation, mask, value, source, CALLER);
}

void emulator::emulator_poll() { this_worker->yield(State::polling, CALLER); }

void *emulator::emulator_shared(const void *key, const char *name, size_t bytes, size_t alignment) {
    return this_worker->shared_array(key, name, bytes, alignment, CALLER);
}

void *emulator::emulator_dynamic_shared(const char *name, size_t alignment) {
    size_t bytes = this_worker->launch->options->shared_bytes;
    return this_worker->shared_array(nullptr, name, bytes, alignment, CALLER);
}

unsigned emulator::emulator_shared_address(const void *pointer) {
    SharedPlace place = this_worker->find_shared(pointer);
    if (place.member < 0)
        this_worker->refuse(OUT_OF_BOUNDS, CALLER, "%p is no address in shared memory", pointer);
    return (unsigned)place.offset | (unsigned)place.member << 24;
}

void emulator::emulator_fence() {
    if (this_worker->launch->memory) this_worker->launch->memory->fence(*this_worker);
}

long long emulator::emulator_clock() {
    return std::chrono::steady_clock::now().time_since_epoch().count();
}

int emulator::emulator_print(const char *format, ...) {
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    int length = std::vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
#ifndef __wasm__
    if (!this_worker) return std::fputs(line, stdout), std::fflush(stdout), length;  // host code
#endif
    Launch &launch = *this_worker->launch;
    std::lock_guard<std::mutex> lock(launch.mutex);
    launch.printed += line;
    return length;
}

void emulator::emulator_assert_failed(const char *expression) {
    this_worker->refuse(ASSERTION, CALLER, "%s", expression);
}

void emulator::emulator_wait_for_previous() { this_worker->fiber().waited = true; }

int emulator::emulator_cluster_rank() { return this_worker->fiber().member; }

void *emulator::emulator_peer(const void *address, int rank) {
    Worker &worker = *this_worker;
    SharedPlace place = worker.find_shared(address);
    if (!place.array || (size_t)rank >= worker.members.size())
        worker.refuse(CRASH, CALLER,
                      "there is no such shared memory in another block of the cluster");
    return worker.members[rank]->shared.begin + place.offset;
}

// A flag in global memory, by which the blocks of several ranks wait for each other.
void emulator::emulator_signal(unsigned *flag, unsigned value) {
    Worker &worker = *this_worker;
    worker.record(flag, sizeof *flag, ACCESS_ATOMIC, CALLER);
    if (MemoryModel *memory = worker.launch->memory.get())
        memory->clocks.release(worker.running(), memory->flags[flag]);
    *flag = value;
}

void emulator::emulator_wait(const unsigned *flag, unsigned value) {
    Worker &worker = *this_worker;
    worker.record(flag, sizeof *flag, ACCESS_ATOMIC, CALLER);
    Fiber &fiber = worker.fiber();
    fiber.waits_for = flag;
    fiber.until = value;
    while ((int)(*flag - value) < 0) worker.yield(State::polling, CALLER);
    fiber.waits_for = nullptr;
    if (MemoryModel *memory = worker.launch->memory.get())  // what came before the signal is done
        memory->clocks.acquire(worker.running(), memory->flags[flag]);
}

// Data that carries a flag: it orders nothing but itself.
void emulator::emulator_send_word(unsigned *slot, unsigned first, unsigned second, unsigned flag) {
    this_worker->record(slot, 16, ACCESS_ATOMIC, CALLER);
    if (MemoryModel *memory = this_worker->launch->memory.get())
        memory->send(*this_worker, slot, flag, CALLER);
    slot[0] = first, slot[1] = flag, slot[2] = second, slot[3] = flag;
}

uint64_t emulator::emulator_receive_word(const unsigned *slot, unsigned flag) {
    Worker &worker = *this_worker;
    worker.record(slot, 16, ACCESS_ATOMIC, CALLER);
    Fiber &fiber = worker.fiber();
    fiber.waits_for = &slot[1];
    fiber.until = flag;
    while (slot[1] != flag) worker.yield(State::polling, CALLER);
    fiber.waits_for = nullptr;
    if (worker.launch->memory) worker.launch->memory->receive(worker, slot);
    return slot[0] | (uint64_t)slot[2] << 32;
}

void emulator::emulator_atomic_load(const void *address, void *old, int bytes) {
    this_worker->record(address, bytes, ACCESS_ATOMIC, CALLER);
    std::memcpy(old, address, bytes);  // only a guess: the exchange sees whether it still holds
}

bool emulator::emulator_compare_exchange(void *address, void *old, const void *desired, int bytes) {
    return bytes == 2   ? compare_exchange<uint16_t>(address, old, desired)
           : bytes == 4 ? compare_exchange<uint32_t>(address, old, desired)
                        : compare_exchange<uint64_t>(address, old, desired);
}
