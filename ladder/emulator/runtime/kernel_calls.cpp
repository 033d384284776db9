// The functions of emulator/thread.h: what kernels call. They run on a fiber's stack.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "scheduler.h"

using namespace emulator;

#define CALLER __builtin_return_address(0)

template <class T>
static bool compare_exchange(void *address, void *old, const void *desired) {
    T value;
    std::memcpy(&value, desired, sizeof value);
    return __atomic_compare_exchange_n((T *)address, (T *)old, value, false, __ATOMIC_SEQ_CST,
                                       __ATOMIC_SEQ_CST);
}

static Deferred defer(void (*action)(void *), const void *payload, size_t payload_bytes) {
    Deferred deferred{action, {}};
    if (payload_bytes > sizeof deferred.payload) __builtin_trap();
    std::memcpy(deferred.payload, payload, payload_bytes);
    return deferred;
}

static NamedBarrier &find_barrier(int id) {
    if (id == CLUSTER_BARRIER) return this_worker->cluster_barrier;
    return this_worker->member().named_barriers[id & 15];
}

// The oldest that has not been waited for and adds to `d`, or nullptr.
static Product *next_product(Pending<Product> &products, const float *d) {
    for (Product &product : products.tasks)
        if (product.d == d) return &product;
    return nullptr;
}

extern "C" {
namespace emulator {

int emulator_barrier(int predicate) {
    Worker &worker = *this_worker;
    worker.fiber().predicate = predicate;
    worker.yield(State::at_barrier, CALLER);
    return worker.member().barrier_result;
}

uint64_t emulator_warp(WarpOperation operation, uint64_t mask, uint64_t value, int source) {
    Fiber &fiber = this_worker->fiber();
    fiber.operation = operation;
    fiber.mask = mask;
    fiber.value = value;
    fiber.source = source % this_worker->warp_size;
    this_worker->yield(State::at_warp, CALLER);
    return fiber.result;
}

uint64_t emulator_active_mask() {
    Worker &worker = *this_worker;
    int warp = worker.warp_of(worker.fiber());
    uint64_t mask = worker.existing_lanes(warp);
    for (const Fiber &fiber : worker.fibers)
        if (worker.warp_of(fiber) == warp && fiber.state == State::done)
            mask &= ~(1ull << fiber.lane);
    return mask;
}

void emulator_poll() { this_worker->yield(State::polling, CALLER); }

void *emulator_shared(const void *key, const char *name, size_t bytes) {
    bool count = this_worker->launch->options->count;
    return this_worker->member().shared.array(key, name, bytes, count);
}

void *emulator_dynamic_shared(const char *name) {
    const Options &options = *this_worker->launch->options;
    SharedMemory &shared = this_worker->member().shared;
    return shared.array(nullptr, name, options.shared_bytes, options.count);
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

void emulator_async_copy(void *to, const void *from, int bytes, int given) {
    this_worker->fiber().copies.start({(char *)to, (const char *)from, bytes, given, CALLER});
}

void emulator_async_commit() { this_worker->fiber().copies.commit(); }

void emulator_async_wait(int pending_groups) {
    Worker &worker = *this_worker;
    worker.fiber().copies.wait(pending_groups, [&](const AsyncCopy &copy) {
        if (copy.given) worker.record(copy.from, copy.given, ACCESS_READ, copy.pc);
        worker.record(copy.to, copy.bytes, ACCESS_WRITE, copy.pc);
        std::memcpy(copy.to, copy.from, copy.given);
        std::memset(copy.to + copy.given, 0, copy.bytes - copy.given);
    });
}

void emulator_product(float *d, int count, Multiply multiply, const void *payload, size_t bytes) {
    Product product{d, multiply, {}, {}};
    if (bytes > sizeof product.payload) __builtin_trap();
    std::memcpy(product.payload, payload, bytes);
    auto &products = this_worker->fiber().products;
    if (!next_product(products, d)) {
        product.value.assign(d, d + count);
        std::fill_n(d, count, NAN);
    }
    products.start(std::move(product));
}

void emulator_product_commit() { this_worker->fiber().products.commit(); }

void emulator_product_wait(int pending_groups) {
    auto &products = this_worker->fiber().products;
    products.wait(pending_groups, [&](Product &product) {
        product.multiply(product.value.data(), product.payload);
        if (Product *next = next_product(products, product.d))
            next->value = std::move(product.value);
        else
            std::copy(product.value.begin(), product.value.end(), product.d);
    });
}

void emulator_release() {
    if (MemoryModel *memory = this_worker->launch->memory.get()) memory->release(*this_worker);
}

void emulator_acquire() {
    if (MemoryModel *memory = this_worker->launch->memory.get()) memory->acquire(*this_worker);
}

void emulator_written(void *address, size_t bytes) {
    if (this_worker->launch->memory) this_worker->launch->memory->written(*this_worker, address, bytes);
}

int emulator_named_barrier(int id, int threads) {
    NamedBarrier &barrier = find_barrier(id);
    int generation = barrier.generation;
    if (id == CLUSTER_BARRIER) threads = (int)this_worker->fibers.size();
    if (++barrier.arrived == threads) barrier = {0, generation + 1};
    return generation;
}

int emulator_named_barrier_generation(int id) { return find_barrier(id).generation; }

int emulator_cluster_rank() { return this_worker->fiber().member; }

void *emulator_peer(const void *address, int rank) {
    Worker &worker = *this_worker;
    SharedArray *array = worker.find_shared(address);
    if (!array || (size_t)rank >= worker.members.size()) {
        worker.fail(CRASH, CALLER, "there is no such shared memory in another block of the cluster");
        worker.abandon();
    }
    bool count = worker.launch->options->count;
    size_t offset = (const char *)address - array->begin;
    SharedMemory &shared = worker.members[rank]->shared;
    return (char *)shared.array(array->key, array->name, array->bytes, count) + offset;
}

void emulator_defer(void (*action)(void *), const void *payload, size_t payload_bytes) {
    this_worker->deferred.push_back(defer(action, payload, payload_bytes));
}

void emulator_store(void (*action)(void *), const void *payload, size_t payload_bytes) {
    this_worker->fiber().stores.start(defer(action, payload, payload_bytes));
}

void emulator_store_commit() { this_worker->fiber().stores.commit(); }

void emulator_store_wait(int pending_groups) {
    auto carry_out = [](Deferred &store) { store.action(store.payload); };
    this_worker->fiber().stores.wait(pending_groups, carry_out);
}

void emulator_atomic_load(const void *address, void *old, int bytes) {
    this_worker->record(address, bytes, ACCESS_ATOMIC, CALLER);
    std::memcpy(old, address, bytes);  // only a guess: the exchange sees whether it still holds
}

bool emulator_compare_exchange(void *address, void *old, const void *desired, int bytes) {
    return bytes == 2   ? compare_exchange<uint16_t>(address, old, desired)
           : bytes == 4 ? compare_exchange<uint32_t>(address, old, desired)
                        : compare_exchange<uint64_t>(address, old, desired);
}

}  // namespace emulator
}  // extern "C"
