// Runs blocks: gives the processor to one fiber after the other until all have returned.
#include "scheduler.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace emulator {
thread_local Current current;
}
using namespace emulator;

thread_local Worker *this_worker;

static constexpr int MOST_IDLE_ROUNDS = 1000;  // rounds of nothing but polling: a deadlock
static constexpr int PATIENCE = 2;             // such rounds before a late copy is made
static constexpr size_t MOST_EVENTS = 1 << 18;  // in a recording

void Launch::add(const Problem &problem) {
    std::lock_guard<std::mutex> lock(mutex);
    if (problems.size() < 100 || (problem.fatal && !stopped)) problems.push_back(problem);
    if (problem.fatal) stopped = true;
}

// ---- what a fiber does -------------------------------------------------------------------------

void Worker::entry() {
    this_worker->launch->kernel(this_worker->launch->arguments);
    this_worker->finish_thread();
    this_worker->yield(State::done, nullptr);
    __builtin_unreachable();
}

void Worker::yield(State state, const void *pc) {
    Fiber &self = fiber();
    self.state = state;
    self.pc = pc;
    emulator_switch(&self.stack_pointer, stack_pointer_);
    if (launch->expired) {  // we are back on the fiber's stack, in an endless loop over barriers
        fail(TIME_LIMIT, pc, "%s", "");
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
#ifdef __wasm__  // there are no signals
    if (emulator_expired()) launch->expired = true;
#endif
    if (launch->expired) {
        fail(TIME_LIMIT, pc, "%s", "");
        abandon();
    }
    launch->memory->access(*this, address, bytes, access, pc);
}

// `member`: the block of the cluster whose barrier it is; -1: it is nobody's.
void Worker::note_as(std::string of, int member, const char *kind, unsigned phase, const void *pc,
                     int came, int threads) {
    if (launch->events.size() == MOST_EVENTS) return;
    if (members.size() > 1 && member >= 0) of += ", block " + std::to_string(member);
    const char *name = launch->names.insert(of).first->c_str();
    launch->events.push_back({place(fiber(), pc), kind, name, (int)phase, came, threads});
}

// What a thread has started must be complete before it returns.
void Worker::finish_thread() {
    Fiber &self = fiber();
    note("returns", "", -1, 0, nullptr);
    if (!self.stores.tasks.empty())
        refuse(IN_FLIGHT, self.stores.tasks.front().pc,
               "returns while TMA may still read the tile that it stores here: no tma_store_wait "
               "covers it");
    if (!self.products.tasks.empty())
        refuse(IN_FLIGHT, self.products.tasks.front().pc,
               "returns while this wgmma is under way: no wgmma_commit and wgmma_wait cover it");
    for (const AsyncCopy &copy : self.copies.tasks)
        if (copy.given)  // one that only writes zeros is as good as none
            refuse(IN_FLIGHT, copy.pc, "returns while this %s is under way: no %s cover it",
                   copy.by == MEMCPY ? "memcpy_async" : "cp.async",
                   copy.by == MEMCPY ? "commit and wait" : "cp_async_commit and cp_async_wait");
    if (launch->options->prefetches && !self.waited)
        refuse(TOO_EARLY, nullptr, "returns without wait_for_previous: its kernel may end before "
                                   "the one that was launched before it");
    if (--member().running > 0) return;
    if (launch->memory) launch->memory->leave(*this, self.member);
    if (!launch->options->ranks) return;
    int rank = rank_of(self);
    if (--running_blocks[rank] == 0 && launch->memory) launch->memory->end_rank(*this, rank);
}

Place Worker::place(const Fiber &fiber, const void *pc) const {
    Place place;
    place.pc = pc;
    const uint3 &b = members[fiber.member]->block.index, &t = fiber.index;
    uint32_t blocks[] = {b.x, b.y, b.z}, threads[] = {t.x, t.y, t.z};
    std::memcpy(place.block, blocks, sizeof blocks);
    std::memcpy(place.thread, threads, sizeof threads);
    place.member = fiber.member;
    place.warp = fiber.warp;
    place.lane = fiber.lane;
    if (launch->records) place.serial = launch->memory->serial() + 1;
    return place;
}

Problem Worker::problem(ProblemKind kind, const void *pc) {
    return {kind, 0, place(fiber(), pc)};
}

// A problem that ends the launch.
void Worker::fail(ProblemKind kind, const void *pc, const char *format, ...) {
    Problem problem = this->problem(kind, pc);
    problem.fatal = 1;
    va_list values;
    va_start(values, format);
    std::vsnprintf(problem.text, sizeof problem.text, format, values);
    va_end(values);
    launch->add(problem);
}

// The same, and this fiber never goes on.
void Worker::refuse(ProblemKind kind, const void *pc, const char *format, ...) {
    char text[sizeof Problem::text];
    va_list values;
    va_start(values, format);
    std::vsnprintf(text, sizeof text, format, values);
    va_end(values);
    fail(kind, pc, "%s", text);
    abandon();
}

// A problem with an access of the running fiber.
void Worker::report(ProblemKind kind, const Where &where, Access access, const void *pc,
                    bool fatal) {
    Problem problem = this->problem(kind, pc);
    problem.fatal = fatal;
    problem.place.access = access;
    problem.where = where;
    launch->add(problem);
}

// One between two threads.
void Worker::report(ProblemKind kind, const Place &place, const Place &other, const char *text) {
    Problem problem{kind, 0, place, other};
    std::strcpy(problem.text, text);
    launch->add(problem);
}

void Worker::out_of_bounds(const Where &where, Access access, const void *pc) {
    report(OUT_OF_BOUNDS, where, access, pc, true);
    abandon();
}

void Worker::left_too_early(int member, const Fiber &other, const void *pc) {
    const uint3 &b = members[member]->block.index;
    Problem problem{CLUSTER, 1, place(other, pc)};
    std::snprintf(problem.text, sizeof problem.text,
                  "accesses shared memory of block (%u, %u, %u), which may have ended by then: no "
                  "cluster_barrier comes between",
                  b.x, b.y, b.z);
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
    layout = {};
    loads.clear();
    counted.clear();
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
        member->block.warp_size = o.warp;
    }
    int threads = o.block[0] * o.block[1] * o.block[2];
    warp_size = o.warp;
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
        if (launch->memory) member->shared.written.resize(SharedLayout::BYTES);
        else member->shared.written.clear();
        member->shared.clear(0, layout.end());
        for (NamedBarrier &barrier : member->named_barriers)
            if (barrier.generation || barrier.arrived) barrier = {};
        member->mbarriers.clear();
        member->meetings = 0;
        member->running = (int)(size.x * size.y * size.z);
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
        fiber.fenced = false;
        fiber.waited = false;
        if (!fiber.accumulators.empty()) fiber.accumulators.clear();
        fiber.waits_at = nullptr;
        fiber.waits_with = nullptr;
        fiber.waits_for = nullptr;
        fiber.waits = 0;
    }
    loads.clear();
    counted.clear();
    cluster_barrier = {};
    running_blocks.assign(launch->options->ranks, (int)(grid.x * grid.z));
    idle_rounds_ = 0;
    // The order within a cluster follows from the seed and its number, whichever worker has it.
    random_.state = 0x9E3779B97F4A7C15ull * (launch->options->seed + 1) + id * 0xBF58476D1CE4E5B9ull;
    if (launch->memory) launch->memory->start_cluster(*this);
    launch->records = launch->records && launch->problems.empty();
    if (!launch->records) return;
    if (launch->first_events.empty()) std::swap(launch->first_events, launch->events);
    launch->events.clear();
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
        if (idle_rounds_ >= PATIENCE && (complete_counted() || complete_load())) continue;
        if (polling == 0 || idle_rounds_ >= MOST_IDLE_ROUNDS) return report_deadlock();
    }
    if (!loads.empty()) {
        current = {&fibers[loads[0].fiber], &members[fibers[loads[0].fiber].member]->block};
        return fail(IN_FLIGHT, loads[0].pc,
                    "starts a copy by TMA that is still under way when its block ends: no thread "
                    "waits at the mbarrier that counts it");
    }
    if (!counted.empty()) {
        const CountedCopy &copy = counted[0];
        current = {&fibers[copy.fiber], &members[fibers[copy.fiber].member]->block};
        return fail(IN_FLIGHT, copy.pc,
                    "starts a memcpy_async that is still under way when its block ends: no thread "
                    "waits at %s, which counts it",
                    title_of(*copy.barrier).c_str());
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
            if (polling && fiber.waits_at && fiber.must_wait()) continue;
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

// Makes one of the late copies of TMA. Returns whether there was any.
bool Worker::complete_load() {
    if (loads.empty()) return false;
    size_t next = launch->options->seed ? random_.below((unsigned)loads.size()) : 0;
    TileCopy load = loads[next];
    loads.erase(loads.begin() + next);
    carry_out(load);
    idle_rounds_ = 0;
    return true;
}

// Names the thread that waits in vain and, if there is one, another that waits elsewhere. The wait
// of fewest threads tells most: that at an mbarrier rather than that at a barrier of all.
void Worker::report_deadlock() {
    auto rank = [](const Fiber &fiber) {
        return fiber.waits_at || fiber.waits_for ? 3 : fiber.state == State::at_barrier ? 0 : fiber.waits_with ? 1 : 2;
    };
    const Fiber *waiting = nullptr, *other = nullptr;
    for (const Fiber &fiber : fibers)
        if (fiber.state != State::done && (!waiting || rank(fiber) > rank(*waiting)))
            waiting = &fiber;
    for (const Fiber &fiber : fibers)
        if (fiber.state != State::done && fiber.pc != waiting->pc && !other) other = &fiber;
    Problem problem{DEADLOCK, 1, place(*waiting, waiting->pc)};
    std::string text = describe_wait(*waiting);
    if (other) {
        problem.other = place(*other, other->pc);
        text += "; another one waits";
        if (other->waits_at || other->waits_for) text = text + " " + describe_wait(*other).substr(6) + ",";
    }
    std::snprintf(problem.text, sizeof problem.text, "%s", text.c_str());
    launch->add(problem);
}

// What is wrong with the mask of a warp operation that never completes.
std::string Worker::explain_mask(const Fiber &fiber) const {
    int warp = warp_of(fiber);
    uint64_t mask = fiber.mask & existing_lanes(warp);
    if (!(mask >> fiber.lane & 1))
        return ": its mask does not name its own lane, " + std::to_string(fiber.lane);
    const Fiber *lanes = &fibers[warps[warp].first];
    for (uint64_t rest = mask; rest; rest &= rest - 1)
        if (lanes[__builtin_ctzll(rest)].state == State::done)
            return ": its mask names lane " + std::to_string(__builtin_ctzll(rest)) +
                   ", which has returned";
    for (uint64_t rest = mask; rest; rest &= rest - 1) {
        const Fiber &lane = lanes[__builtin_ctzll(rest)];
        if (lane.state != State::at_warp || lane.operation != fiber.operation)
            return ": its mask names lane " + std::to_string(lane.lane) + ", which is elsewhere";
        if ((lane.mask & existing_lanes(warp)) != mask)
            return ": lane " + std::to_string(lane.lane) + " has come with another mask";
    }
    return "";
}

// What a thread waits for, and what is missing: "waits at the mbarrier full[0] ...".
std::string Worker::describe_wait(const Fiber &fiber) const {
    char text[sizeof Problem::text];
    if (const Mbarrier *barrier = fiber.waits_at) {
        std::string parity =
            barrier->kind == MBARRIER ? " (parity " + std::to_string(fiber.parity) + ")" : "";
        std::snprintf(text, sizeof text,
                      "waits at %s for the end of phase %u%s, in which %d of %d threads have arrived "
                      "and %d bytes %s",
                      title_of(*barrier).c_str(), barrier->phases, parity.c_str(),
                      barrier->count - barrier->missing_threads, barrier->count,
                      std::abs(barrier->missing_bytes),
                      barrier->missing_bytes < 0 ? "more were copied than expected"
                                                 : "have yet to be copied");
    } else if (const NamedBarrier *barrier = fiber.waits_with) {
        std::snprintf(text, sizeof text, "waits at a barrier to which %d of %d threads have come",
                      barrier->arrived, barrier->threads);
    } else if (fiber.waits_for) {
        std::snprintf(text, sizeof text,
                      "waits for a flag to become %u, and it stays at %u: no thread that still runs "
                      "signals it",
                      fiber.until, *fiber.waits_for);
    } else {
        static const char *const WAITS[] = {"", "", "in a warp operation", "at a barrier",
                                            "for memory to change", ""};
        std::string cause = fiber.state == State::at_warp ? explain_mask(fiber) : "";
        std::snprintf(text, sizeof text, "waits %s for threads that never come%s",
                      WAITS[(int)fiber.state], cause.c_str());
    }
    return text;
}
