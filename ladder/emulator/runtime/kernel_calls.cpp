// The functions of emulator/thread.h: what kernels call. They run on a fiber's stack.
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "scheduler.h"

using namespace emulator;

#define CALLER __builtin_return_address(0)

extern "C" {
namespace emulator {

int emulator_barrier(int predicate) {
    Worker &worker = *this_worker;
    worker.fiber().predicate = predicate;
    worker.yield(State::at_barrier, CALLER);
    return worker.barrier_result;
}

uint64_t emulator_warp(WarpOperation operation, uint64_t mask, uint64_t value, int source) {
    Fiber &fiber = this_worker->fiber();
    fiber.operation = operation;
    fiber.mask = mask;
    fiber.value = value;
    fiber.source = source % this_worker->block.warp_size;
    this_worker->yield(State::at_warp, CALLER);
    return fiber.result;
}

uint64_t emulator_active_mask() {
    Worker &worker = *this_worker;
    int warp = worker.fiber().warp;
    uint64_t mask = worker.existing_lanes(warp);
    for (const Fiber &fiber : worker.fibers)
        if (fiber.warp == warp && fiber.state == State::done) mask &= ~(1ull << fiber.lane);
    return mask;
}

void emulator_poll() { this_worker->yield(State::polling, CALLER); }

void *emulator_shared(const void *key, const char *name, size_t bytes) {
    return this_worker->shared.array(key, name, bytes, this_worker->launch->options->count);
}

void *emulator_dynamic_shared(const char *name) {
    const Options &options = *this_worker->launch->options;
    return this_worker->shared.array(nullptr, name, options.shared_bytes, options.count);
}

void emulator_fence() {
    if (this_worker->launch->memory) this_worker->launch->memory->fence(*this_worker);
}

long long emulator_clock() {
    return std::chrono::steady_clock::now().time_since_epoch().count();
}

int emulator_print(const char *format, ...) {
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    int length = std::vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    Launch &launch = *this_worker->launch;
    std::lock_guard<std::mutex> lock(launch.mutex);
    launch.printed += line;
    return length;
}

void emulator_assert_failed(const char *expression) {
    this_worker->fail(ASSERTION, CALLER, expression);
    this_worker->abandon();
}

void emulator_defer(void (*action)(void *), const void *payload, size_t payload_bytes) {
    Deferred deferred{action, {}};
    if (payload_bytes > sizeof deferred.payload) __builtin_trap();
    std::memcpy(deferred.payload, payload, payload_bytes);
    this_worker->deferred.push_back(deferred);
}

// ---- the hooks of counting mode ----------------------------------------------------------------
// Compiled with -fsanitize=thread, a kernel calls these before every load and store that is not
// provably its own local variable. Nothing of ThreadSanitizer itself is linked.

static void record(const void *address, size_t bytes, Access access, const void *pc) {
    Worker *worker = this_worker;
    if (!worker || !worker->launch->memory) return;
    if (worker->launch->expired) {
        worker->fail(TIME_LIMIT, pc, "");
        worker->abandon();
    }
    worker->launch->memory->access(*worker, address, (int)bytes, access, pc);
}

void emulator_access(const volatile void *address, int bytes, Access access) {
    record((const void *)address, bytes, access, CALLER);
}
}  // namespace emulator

#define HOOK(NAME, BYTES, ACCESS)                                              \
    EMULATOR_EXPORT void NAME(void *address) {                                 \
        emulator::record(address, BYTES, ACCESS, CALLER);                      \
    }
#define HOOKS(BYTES)                                                           \
    HOOK(__tsan_read##BYTES, BYTES, ACCESS_READ)                               \
    HOOK(__tsan_write##BYTES, BYTES, ACCESS_WRITE)                             \
    HOOK(__tsan_unaligned_read##BYTES, BYTES, ACCESS_READ)                     \
    HOOK(__tsan_unaligned_write##BYTES, BYTES, ACCESS_WRITE)                   \
    HOOK(__tsan_volatile_read##BYTES, BYTES, ACCESS_READ)                      \
    HOOK(__tsan_volatile_write##BYTES, BYTES, ACCESS_WRITE)                    \
    HOOK(__tsan_unaligned_volatile_read##BYTES, BYTES, ACCESS_READ)            \
    HOOK(__tsan_unaligned_volatile_write##BYTES, BYTES, ACCESS_WRITE)
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

// x += 1 on memory: some versions of clang announce the load and the store in one call.
#define READ_WRITE(BYTES)                                                      \
    EMULATOR_EXPORT void __tsan_read_write##BYTES(void *address) {             \
        emulator::record(address, BYTES, ACCESS_READ, CALLER);                 \
        emulator::record(address, BYTES, ACCESS_WRITE, CALLER);                \
    }
READ_WRITE(1)
READ_WRITE(2)
READ_WRITE(4)
READ_WRITE(8)
READ_WRITE(16)

EMULATOR_EXPORT void __tsan_read_range(void *address, size_t bytes) {
    emulator::record(address, bytes, ACCESS_READ, CALLER);
}
EMULATOR_EXPORT void __tsan_write_range(void *address, size_t bytes) {
    emulator::record(address, bytes, ACCESS_WRITE, CALLER);
}
// clang leaves copies of structures to memcpy; launch.h gives each kernel one that comes here.
EMULATOR_EXPORT void *emulator_copy(void *to, const void *from, size_t bytes, const void *pc) {
    emulator::record(from, bytes, ACCESS_READ, pc);
    emulator::record(to, bytes, ACCESS_WRITE, pc);
    return std::memmove(to, from, bytes);
}
EMULATOR_EXPORT void *__tsan_memcpy(void *to, const void *from, size_t bytes) {
    return emulator_copy(to, from, bytes, CALLER);
}
EMULATOR_EXPORT void *__tsan_memmove(void *to, const void *from, size_t bytes) {
    return emulator_copy(to, from, bytes, CALLER);
}
EMULATOR_EXPORT void *__tsan_memset(void *to, int value, size_t bytes) {
    emulator::record(to, bytes, ACCESS_WRITE, CALLER);
    return std::memset(to, value, bytes);
}
EMULATOR_EXPORT void __tsan_init() {}
EMULATOR_EXPORT void __tsan_func_entry(void *) {}
EMULATOR_EXPORT void __tsan_func_exit() {}
EMULATOR_EXPORT void __tsan_vptr_update(void **, void *) {}
EMULATOR_EXPORT void __tsan_vptr_read(void **) {}
}  // extern "C"
