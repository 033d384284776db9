// Runs blocks: gives the processor to one fiber after the other until all have returned.
#include "scheduler.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace emulator {
thread_local Current current;
}
using namespace emulator;

thread_local Worker *this_worker;

static constexpr int MOST_IDLE_ROUNDS = 1000;  // rounds of nothing but polling: a deadlock
static constexpr int PATIENCE = 2;             // such rounds before a deferred action is done

void Launch::add(const Problem &problem) {
    std::lock_guard<std::mutex> lock(mutex);
    if (problems.size() < 100 || (problem.fatal && !stopped)) problems.push_back(problem);
    if (problem.fatal) stopped = true;
}

// ---- what a fiber does -------------------------------------------------------------------------

void Worker::entry() {
    this_worker->launch->kernel(this_worker->launch->arguments);
    this_worker->yield(State::done, nullptr);
    __builtin_unreachable();
}

void Worker::yield(State state, const void *pc) {
    Fiber &self = fiber();
    self.state = state;
    self.pc = pc;
    emulator_switch(&self.stack_pointer, stack_pointer_);
    if (launch->expired) {  // we are back on the fiber's stack, in an endless loop over barriers
        fail(TIME_LIMIT, pc, "");
        abandon();
    }
}

void Worker::abandon() {
    launch->stopped = true;
    fiber().state = State::done;
    emulator_switch(&fiber().stack_pointer, stack_pointer_);
    __builtin_unreachable();
}

// An access to memory, in counting mode.
void Worker::record(const void *address, int bytes, Access access, const void *pc) {
    if (!launch->memory) return;
    if (launch->expired) {
        fail(TIME_LIMIT, pc, "");
        abandon();
    }
    launch->memory->access(*this, address, bytes, access, pc);
}

void Worker::misaligned(const void *address, Access access, const void *pc) {
    char text[80];
    std::snprintf(text, sizeof text, "%s at address %p, which is not a multiple of its size",
                  access == ACCESS_READ ? "read" : "write", address);
    fail(MISALIGNED, pc, text);
    abandon();
}

Place Worker::place(const Fiber &fiber, const void *pc) const {
    Place place;
    place.pc = pc;
    const uint3 &b = members[fiber.member]->block.index, &t = fiber.index;
    uint32_t blocks[] = {b.x, b.y, b.z}, threads[] = {t.x, t.y, t.z};
    std::memcpy(place.block, blocks, sizeof blocks);
    std::memcpy(place.thread, threads, sizeof threads);
    return place;
}

void Worker::fail(ProblemKind kind, const void *pc, const char *text) {
    Problem problem{};
    problem.kind = kind;
    problem.fatal = 1;
    problem.place = place(fiber(), pc);
    problem.where.argument = -1;
    std::strncpy(problem.text, text, sizeof problem.text - 1);
    launch->add(problem);
}

// ---- what the scheduler does -------------------------------------------------------------------

void Worker::run(Launch &of) {
    launch = &of;
    this_worker = this;
    prepare();
    unsigned clusters = (unsigned)of.cluster_order.size();
    for (unsigned i; (i = of.next_cluster++) < clusters && !of.stopped;)
        run_cluster(of.cluster_order[i]);
    for (auto &member : members) member->shared.release();
    deferred.clear();
    current = {};
    this_worker = nullptr;
}

void Worker::prepare() {
    const Options &o = *launch->options;
    while (members.size() > o.cluster) members.pop_back();
    while (members.size() < o.cluster) members.push_back(std::make_unique<Member>());
    for (auto &member : members) {
        member->block.grid = dim3(o.grid[0], o.grid[1], o.grid[2]);
        member->block.block = dim3(o.block[0], o.block[1], o.block[2]);
        member->block.warp_size = o.warp_size;
    }
    int threads = o.block[0] * o.block[1] * o.block[2];
    warp_size = o.warp_size;
    warps_of_block = (threads + warp_size - 1) / warp_size;
    warps.clear();
    for (int member = 0; member < (int)o.cluster; member++)
        for (int first = 0; first < threads; first += warp_size)
            warps.push_back({member * threads + first, std::min(warp_size, threads - first)});
    fibers.resize(o.cluster * threads);
    stacks.resize((int)fibers.size());
    gathered.resize(fibers.size());
    warp_order_.resize(warps.size());
    lane_order_.resize(warp_size);
    for (size_t i = 0; i < warps.size(); i++) warp_order_[i] = (int)i;
    for (int i = 0; i < warp_size; i++) lane_order_[i] = i;
}

void Worker::start_cluster(unsigned id) {
    const dim3 grid = members[0]->block.grid, size = members[0]->block.block;
    unsigned number = id * (unsigned)members.size();
    for (auto &member : members) {
        member->number = number;
        member->block.index = {number % grid.x, number / grid.x % grid.y, number / grid.x / grid.y};
        member->shared.clear(launch->options->count);
        std::memset(member->named_barriers, 0, sizeof member->named_barriers);
        member->barrier_epoch = 0;
        number++;
    }
    unsigned threads = size.x * size.y * size.z;
    for (unsigned all = 0; all < fibers.size(); all++) {
        Fiber &fiber = fibers[all];
        unsigned i = all % threads;
        fiber.member = (int)(all / threads);
        fiber.index = {i % size.x, i / size.x % size.y, i / size.x / size.y};
        fiber.lane = i % warp_size;
        fiber.warp = i / warp_size;
        fiber.state = State::fresh;
        fiber.copies.clear();
        fiber.products.clear();
        fiber.stores.clear();
    }
    deferred.clear();
    cluster_barrier = {};
    idle_rounds_ = 0;
    // The order within a cluster follows from the seed and its number, whichever worker has it.
    random_.state = 0x9E3779B97F4A7C15ull * (launch->options->seed + 1) + id * 0xBF58476D1CE4E5B9ull;
}

void Worker::run_cluster(unsigned id) {
    start_cluster(id);
    for (;;) {
        if (launch->options->seed) random_.shuffle(warp_order_);
        bool moved = false;
        for (int warp : warp_order_) {
            moved |= run_warp(warp);
            if (launch->stopped) return;
        }
        bool opened = false;
        for (size_t member = 0; member < members.size(); member++)
            opened |= complete_barrier((int)member);
        if (opened) continue;
        int polling = 0, waiting = 0;
        for (const Fiber &fiber : fibers) {
            polling += fiber.state == State::polling;
            waiting += fiber.state != State::done;
        }
        if (waiting == 0) break;
        idle_rounds_ = moved ? 0 : idle_rounds_ + 1;
        if (idle_rounds_ >= PATIENCE && complete_deferred()) continue;
        if (polling == 0 || idle_rounds_ >= MOST_IDLE_ROUNDS) return report_deadlock();
    }
    while (complete_deferred()) {
    }
    if (launch->memory) launch->memory->finish_cluster(*this);
}

// Lets each lane of a warp run as far as it gets. Returns whether one did more than poll.
bool Worker::run_warp(int warp) {
    auto [first, count] = warps[warp];
    bool moved = false, may_poll = true;
    do {
        if (launch->options->seed) random_.shuffle(lane_order_);
        for (int lane : lane_order_) {
            if (lane >= count) continue;
            Fiber &fiber = fibers[first + lane];
            bool polling = fiber.state == State::polling;
            if (fiber.state > State::ready && !(polling && may_poll)) continue;
            run_fiber(fiber);
            if (launch->stopped) return true;
            moved |= fiber.state != State::polling;
        }
        may_poll = false;
    } while (complete_warp_operations(warp));
    return moved;
}

void Worker::run_fiber(Fiber &fiber) {
    if (fiber.state == State::fresh)
        fiber.stack_pointer = fresh_fiber(stacks.top((int)(&fiber - fibers.data())), entry);
    fiber.state = State::ready;
    current = {&fiber, &members[fiber.member]->block};
    emulator_switch(&stack_pointer_, fiber.stack_pointer);
}

// The lanes that the block has in this warp; the last warp of a block may be a partial one.
uint64_t Worker::existing_lanes(int warp) const {
    int count = warps[warp].count;
    return count == 64 ? ~0ull : (1ull << count) - 1;
}

SharedArray *Worker::find_shared(const void *address) {
    for (auto &member : members)
        if (SharedArray *array = member->shared.find(address)) return array;
    return nullptr;
}

bool Worker::complete_deferred() {
    if (deferred.empty()) return false;
    size_t next = launch->options->seed ? random_.below((unsigned)deferred.size()) : 0;
    Deferred action = deferred[next];
    deferred.erase(deferred.begin() + next);
    current = {&fibers[0], &members[0]->block};
    action.action(action.payload);
    idle_rounds_ = 0;
    return true;
}

// Names the thread that waits in vain and, if there is one, another that waits elsewhere.
void Worker::report_deadlock() {
    const Fiber *waiting = nullptr, *other = nullptr;
    for (const Fiber &fiber : fibers) {
        if (fiber.state == State::done) continue;
        if (!waiting || (waiting->state == State::at_barrier && fiber.state != State::at_barrier)) {
            other = waiting ? waiting : other;
            waiting = &fiber;
        } else if (fiber.pc != waiting->pc && !other) {
            other = &fiber;
        }
    }
    static const char *const WAITS[] = {"", "", "in a warp operation", "at a barrier",
                                        "for memory to change", ""};
    Problem problem{};
    problem.kind = DEADLOCK;
    problem.fatal = 1;
    problem.place = place(*waiting, waiting->pc);
    if (other) problem.other = place(*other, other->pc);
    std::strcpy(problem.text, WAITS[(int)waiting->state]);
    launch->add(problem);
}
