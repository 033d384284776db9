// Shared memory, and what happens at each access in counting mode. See also races.cpp, counts.cpp.
#include "memory.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "scheduler.h"

using namespace emulator;

static constexpr size_t FIRST = 1024;  // the first KiB of shared memory is the system's, on Hopper
static const char *const ACCESSES[] = {"read", "write", "atomic"};  // by emulator::Access
static constexpr size_t BESIDE = 4096;  // bytes from a buffer that are most likely ours to read

// ---- shared memory -----------------------------------------------------------------------------

const SharedArray *SharedLayout::find(const void *key) const {
    for (const SharedArray &array : arrays_)
        if (array.key == key) return &array;
    return nullptr;
}

const SharedArray *SharedLayout::find(size_t offset) const {
    for (const SharedArray &array : arrays_)
        if (offset - array.offset < array.bytes) return &array;
    return nullptr;
}

const SharedArray *SharedLayout::nearest(size_t offset) const {
    auto gap = [offset](const SharedArray &array) {
        return offset < array.offset ? array.offset - offset : offset - array.offset - array.bytes;
    };
    auto found = std::min_element(
        arrays_.begin(), arrays_.end(),
        [gap](const SharedArray &a, const SharedArray &b) { return gap(a) < gap(b); });
    return found == arrays_.end() ? nullptr : &*found;
}

const SharedArray &SharedLayout::add(const void *key, const char *name, size_t bytes,
                                     size_t alignment) {
    if (arrays_.empty()) end_ = FIRST;
    size_t offset = (end_ + alignment - 1) / alignment * alignment;
    if (alignment < 1024 && offset / alignment % 2 == 0) offset += alignment;
    arrays_.push_back({key, name, offset, bytes});
    end_ = offset + bytes;
    return arrays_.back();
}

size_t SharedLayout::fixed_bytes() const {
    size_t sum = 0;
    for (const SharedArray &array : arrays_)
        if (array.key) sum += array.bytes;
    return sum;
}

SharedMemory::SharedMemory() : begin((char *)std::aligned_alloc(1024, SharedLayout::BYTES)) {}

SharedMemory::~SharedMemory() { std::free(begin); }

void SharedMemory::clear(size_t from, size_t to) {
    std::memset(begin + from, 0xff, to - from);
    if (!written.empty()) std::memset(&written[from], 0, to - from);
}

// ---- accesses ----------------------------------------------------------------------------------

MemoryModel::MemoryModel(Launch &launch, int blocks) : launch_(launch), published_(blocks) {}

void MemoryModel::start_cluster(Worker &worker) {
    int fibers = (int)worker.fibers.size();
    clocks.start(fibers);
    agents_.clear();
    for (int fiber = 0; fiber < fibers; fiber++) agents_.push_back({THREAD, fiber});
    agent_index_.clear();
    fences_.assign(fibers, nullptr);
    peer_accesses_.assign(worker.members.size(), {});
    logs_.resize(fibers);
    cluster_start_ = serial_ + 1;
    // The beginning of each rank's kernel is the step of an agent, which all its threads know.
    int ranks = (int)worker.launch->options->ranks;
    rank_accesses_.assign(ranks, {});
    for (int rank = 0; rank < ranks; rank++) {
        clocks.begin(rank * (fibers / ranks), fibers / ranks, fibers + rank);
        agents_.push_back({THREAD, rank * (fibers / ranks)});
    }
}

static bool within(const void *address, const void *begin, size_t bytes) {
    return (size_t)((const char *)address - (const char *)begin) < bytes;
}

// Not the kernel's memory: local variables, threadIdx and its kind.
static bool is_private(const Worker &worker, const char *at) {
    return within(at, worker.fibers.data(), worker.fibers.size() * sizeof(Fiber)) ||
           within(at, worker.gathered.data(), worker.gathered.size() * sizeof(uint64_t)) ||
           within(at, current.block, sizeof *current.block) ||
           within(at, &current, sizeof current);
}

static bool is_beside_a_buffer(const Launch &launch, const char *at) {
    for (const Buffer &buffer : launch.buffers)
        if (within(at, (const char *)buffer.begin - BESIDE, buffer.bytes + 2 * BESIDE)) return true;
    return false;
}

void MemoryModel::access(Worker &worker, const void *address, int bytes, Access access,
                         const void *pc) {
    settle_doubt();
    const char *at = (const char *)address;
    if (worker.stacks.contains(at)) return worker.check_accumulators(at, bytes, pc);
    int fiber = worker.running();
    if (is_private(worker, at)) return;
    Actor thread{fiber, clocks.now(fiber), false};
    SharedPlace place = worker.find_shared(at);
    if (place.member >= 0) return access_shared(worker, thread, place, bytes, access, pc);
    for (const Buffer &buffer : launch_.buffers) {
        if (!within(at, buffer.begin, buffer.bytes)) continue;
        if (buffer.element_bytes == 0) return;  // a structure passed by value
        Where where{nullptr, buffer.argument, bytes, at - buffer.begin};
        if (where.offset + bytes > buffer.bytes) return worker.out_of_bounds(where, access, pc);
        if (launch_.options->prefetches && !worker.fiber().waited &&
            (access != ACCESS_READ || !buffer.prefetched) && first_time(TOO_EARLY, pc, nullptr))
            worker.report(TOO_EARLY, where, access, pc);  // the kernel before may still use it
        serial_++;
        uint32_t site = find_site(pc, nullptr, where.argument, access, bytes);
        if (access == ACCESS_ATOMIC) publish(worker, fiber);
        Shadow &shadow = shadow_of(buffer.begin, buffer.bytes, std::min(4, buffer.element_bytes));
        if (worker.launch->options->ranks && buffer.row_bytes)
            check_rank(worker, (int)(where.offset / buffer.row_bytes), site);
        check_race(worker, thread, shadow, site, where, where.offset, at);
        if (buffer.argument >= 0) logs_[fiber].push_back({site, where.offset});
        return;
    }
    Where where{nullptr, -1, bytes, (int64_t)at};
    // A read beside a buffer does no harm: the run goes on, and shows what else is wrong.
    if (access == ACCESS_READ && is_beside_a_buffer(launch_, at)) {
        if (first_time(OUT_OF_BOUNDS, pc, nullptr)) worker.report(OUT_OF_BOUNDS, where, access, pc);
        return;
    }
    worker.out_of_bounds(where, access, pc);
}

// An atomic, on a buffer or a __device__ variable: what its thread did before a fence is known to
// the blocks whose atomics come later.
void MemoryModel::publish(Worker &worker, int fiber) {
    Published &published = published_[worker.member().number];
    published.acquired = ++serial_;
    if (!fences_[fiber]) return;
    if (fences_[fiber] != published.view) {
        auto view = std::make_shared<View>(*fences_[fiber]);
        if (published.view) view->add(*published.view);
        fences_[fiber] = published.view = view;
    }
    published.released = serial_;
}

// By a thread, or by a unit that it has started, which is not counted.
void MemoryModel::access_shared(Worker &worker, const Actor &actor, const SharedPlace &place,
                                int bytes, Access access, const void *pc) {
    if (!place.array) {
        const SharedArray *array = worker.layout.nearest(place.offset);
        if (!array) worker.refuse(OUT_OF_BOUNDS, pc, "no array is in shared memory yet");
        const char *dynamic = array->key || array->bytes
                                  ? ""
                                  : ": give its bytes in the launch, after grid and block";
        worker.refuse(OUT_OF_BOUNDS, pc,
                      "%s of %d bytes across the end of shared memory, at offset %lld of %s, which "
                      "has %zu bytes%s",
                      ACCESSES[access], bytes, (long long)(place.offset - array->offset),
                      array->name, array->bytes, dynamic);
    }
    Where where{place.array->name, -1, bytes, (int64_t)place.offset};
    if (place.offset + bytes > place.array->offset + place.array->bytes)
        return worker.out_of_bounds(where, access, pc);
    where.offset -= (int64_t)place.array->offset;
    SharedMemory &memory = worker.members[place.member]->shared;
    serial_++;
    uint32_t site = find_site(pc, where.shared_name, -1, access, bytes);
    uint8_t *written = &memory.written[place.offset];
    const Agent &agent = agents_[actor.agent];
    if (access == ACCESS_WRITE) {
        std::memset(written, 1, bytes);
    } else if (agent.kind == THREAD && std::memchr(written, 0, bytes) &&
               first_time(UNINITIALISED, pc, nullptr)) {
        worker.report(UNINITIALISED, where, access, pc);
    }
    if (place.member != worker.fiber().member)
        touch_peer(worker, place.member, actor.agent, actor.time, pc);
    Shadow &shadow = shadow_of(memory.begin, SharedLayout::BYTES, 2);
    check_race(worker, actor, shadow, site, where, (int64_t)place.offset,
               memory.begin + place.offset);
    if (agent.kind != TMA_LOAD && agent.kind != TMA_STORE && agent.kind != WGMMA)
        logs_[worker.running()].push_back({site, where.offset});
}

MemoryModel::Shadow &MemoryModel::shadow_of(const char *begin, int64_t size, int granule) {
    auto found = shadows_.find(begin);
    if (found == shadows_.end()) {
        found = shadows_.emplace(begin, Shadow{granule, {}}).first;
        found->second.chunks.resize(size / granule / Shadow::CHUNK + 1);
    }
    return found->second;
}

// ---- accesses of the units that a thread starts ------------------------------------------------

// The number of an agent that works for a thread; it gets `count` numbers in a row.
int MemoryModel::agent(AgentKind kind, int fiber, int count) {
    auto [found, fresh] = agent_index_.emplace((uint64_t)kind << 32 | fiber, (int)agents_.size());
    if (fresh) agents_.insert(agents_.end(), count, {kind, fiber});
    return found->second;
}

void MemoryModel::copy(Worker &worker, void *to, int bytes, AgentKind by, const void *pc) {
    Fiber &fiber = worker.fiber();
    Actor actor{agent(by, worker.number_of(fiber)), fiber.copies.committed + 1, false};
    access_shared(worker, actor, worker.find_shared(to), bytes, ACCESS_WRITE, pc);
}

void MemoryModel::copy_counted(Worker &worker, void *to, int bytes, AgentKind by,
                               Mbarrier &barrier, const void *pc) {
    if (barrier.agent < 0) {
        barrier.agent = (int)agents_.size();
        agents_.push_back({by, worker.running()});
    }
    Actor actor{barrier.agent, barrier.phases + 1, by == TMA_LOAD};
    access_shared(worker, actor, worker.find_shared(to), bytes, ACCESS_WRITE, pc);
}

void MemoryModel::store_tile(Worker &worker, const char *tile, int bytes, const void *pc) {
    Fiber &fiber = worker.fiber();
    Actor actor{agent(TMA_STORE, worker.number_of(fiber)), fiber.stores.committed + 1, true};
    access_shared(worker, actor, worker.find_shared(tile), bytes, ACCESS_READ, pc);
}

// `pieces`: the positions of 16 bytes each that a wgmma of the running warp reads. The first warp
// of the warpgroup leaves stamps for all four.
void MemoryModel::read_operand(Worker &worker, const std::vector<unsigned> &pieces,
                               const void *pc) {
    Fiber &fiber = worker.fiber();
    int warp = worker.warp_of(fiber), in_group = fiber.warp % 4;
    int group = agent(WGMMA, warp - in_group, 4);
    Actor actor{group, fiber.products.committed + 1, true, in_group == 0};
    for (unsigned piece : pieces) {
        SharedPlace place{fiber.member, worker.layout.find((size_t)piece), piece};
        access_shared(worker, actor, place, in_group == 0 ? 16 : 2, ACCESS_READ, pc);
    }
}

// ---- what orders accesses ----------------------------------------------------------------------

void MemoryModel::complete(Worker &worker, std::initializer_list<AgentKind> kinds, Time groups) {
    int fiber = worker.running();
    for (AgentKind kind : kinds) clocks.learn(fiber, agent(kind, fiber), groups);
}

void MemoryModel::complete_products(Worker &worker, Time groups) {
    Fiber &fiber = worker.fiber();
    int in_group = fiber.warp % 4;
    int first = agent(WGMMA, worker.warp_of(fiber) - in_group, 4);
    clocks.learn(worker.number_of(fiber), first + in_group, groups);
}

void MemoryModel::fence(Worker &worker) {
    int fiber = worker.running();
    fences_[fiber] = clocks.snapshot(fiber);
}

// Whoever waits for this phase knows that the copies that it counted are complete.
void MemoryModel::complete_phase(Mbarrier &barrier) {
    barrier.completed.add(barrier.arrived);
    if (barrier.agent >= 0) View::raise(barrier.completed.seen, barrier.agent, barrier.phases);
}

// The thread that initialised the barrier must have met this one since.
void MemoryModel::use_barrier(Worker &worker, Mbarrier &barrier, const void *pc) {
    int fiber = worker.running();
    if (clocks.seen(fiber, barrier.maker) >= barrier.made) return;
    if (!first_time(BARRIER_MISUSE, pc, barrier.pc)) return;
    const Fiber &maker = worker.fibers[barrier.maker];
    Problem problem = worker.problem(BARRIER_MISUSE, pc);
    problem.other = worker.place(maker, barrier.pc);
    std::snprintf(problem.text, sizeof problem.text,
                  "uses %s, and no %s comes between that and %s",
                  worker.title_of(barrier).c_str(),
                  maker.member == worker.fiber().member ? "barrier" : "cluster_barrier",
                  barrier.kind == MBARRIER ? "mbarrier_init" : "its init");
    launch_.add(problem);
}

// ---- the end of a block ------------------------------------------------------------------------

void MemoryModel::touch_peer(Worker &worker, int member, int agent, Time time, const void *pc) {
    std::vector<PeerAccess> &accesses = peer_accesses_[member];
    if (accesses.size() <= (size_t)agent) accesses.resize(agent + 1);
    accesses[agent] = {time, pc};
    if (worker.members[member]->running == 0) worker.left_too_early(member, worker.fiber(), pc);
}

// Accesses of other blocks to this one's shared memory must come before its end.
void MemoryModel::leave(Worker &worker, int member) {
    int threads = (int)(worker.fibers.size() / worker.members.size());
    const std::vector<PeerAccess> &accesses = peer_accesses_[member];
    for (int agent = 0; agent < (int)accesses.size(); agent++) {
        if (!accesses[agent].time) continue;
        bool known = false;
        for (int fiber = member * threads; fiber < (member + 1) * threads && !known; fiber++)
            known = clocks.seen(fiber, agent) >= accesses[agent].time;
        const Fiber &other = worker.fibers[agents_[agent].fiber];
        if (!known) return worker.left_too_early(member, other, accesses[agent].pc);
    }
}

// ---- the beginning and the end of a rank -------------------------------------------------------
//
// The ranks' kernels begin and end one by one. What runs before and after them on the same GPU uses
// the same arguments: a thread may access those of another rank only after it knows that the kernel
// there has begun, and that kernel may not end before it knows that the access is over.

void MemoryModel::check_rank(Worker &worker, int owner, uint32_t site) {
    const Fiber &fiber = worker.fiber();
    if (owner == worker.rank_of(fiber)) return;
    int thread = worker.number_of(fiber), fibers = (int)worker.fibers.size();
    bool begun = clocks.seen(thread, fibers + owner) > 0;
    if (!begun || worker.running_blocks[owner] == 0)
        report_rank(worker, fiber, owner, site, begun);
    std::vector<PeerAccess> &accesses = rank_accesses_[owner];
    if (accesses.size() <= (size_t)thread) accesses.resize(fibers);
    accesses[thread] = {clocks.now(thread), sites[site].pc, site};
}

void MemoryModel::end_rank(Worker &worker, int rank) {
    int threads = (int)worker.fibers.size() / (int)rank_accesses_.size(), first = rank * threads;
    const std::vector<PeerAccess> &accesses = rank_accesses_[rank];
    for (int agent = 0; agent < (int)accesses.size(); agent++) {
        bool known = accesses[agent].time == 0;
        for (int fiber = first; fiber < first + threads && !known; fiber++)
            known = clocks.seen(fiber, agent) >= accesses[agent].time;
        if (!known) report_rank(worker, worker.fibers[agent], rank, accesses[agent].site, true);
    }
}

void MemoryModel::report_rank(Worker &worker, const Fiber &fiber, int owner, uint32_t site,
                              bool ended) {
    if (!first_time(RANKS, sites[site].pc, ended ? &sites : nullptr)) return;
    Problem problem{RANKS, 0, worker.place(fiber, sites[site].pc)};
    problem.where.argument = sites[site].argument;
    problem.place.access = sites[site].access;
    std::snprintf(problem.text, sizeof problem.text,
                  ended ? "of rank %d, whose kernel may have ended by then: it does not wait for a "
                          "signal that comes after this access"
                        : "of rank %d, whose kernel may not have begun yet: no wait for a signal of "
                          "that rank comes before",
                  owner);
    launch_.add(problem);
}

// A rank may be a launch ahead of another one. Its word may come where that of the launch before is
// only if it knows that the kernel of the rank that reads both has begun: by a signal or a word.
void MemoryModel::send(Worker &worker, const unsigned *slot, unsigned flag, const void *pc) {
    int thread = worker.running(), fibers = (int)worker.fibers.size();
    bool first = launch_.options->ranks &&
                 senders_.emplace(slot, worker.rank_of(worker.fiber())).second;
    if (!first || flag == 1 || slot[1] != flag - 1) return;
    for (const Buffer &buffer : launch_.buffers) {
        if (!within(slot, buffer.begin, buffer.bytes)) continue;
        int reader = (int)(((char *)slot - buffer.begin) * launch_.options->ranks / buffer.bytes);
        if (clocks.seen(thread, fibers + reader) == 0)
            worker.refuse(IN_FLIGHT, pc,
                          "sends a word to where rank %d may not have read that of the launch "
                          "before: let two inboxes take turns",
                          reader);
    }
}

void MemoryModel::receive(Worker &worker, const unsigned *slot) {
    auto sender = senders_.find(slot);
    if (sender == senders_.end()) return;
    clocks.learn(worker.running(), (int)worker.fibers.size() + sender->second, 1);
}

uint32_t MemoryModel::find_site(const void *pc, const char *shared_name, int argument,
                                Access access, int bytes) {
    uint64_t key = 0;
    for (uint64_t part : {(uint64_t)pc, (uint64_t)shared_name, (uint64_t)argument,
                          (uint64_t)access, (uint64_t)bytes})
        key = (key ^ part) * 0x9E3779B97F4A7C15ull, key ^= key >> 29;
    auto [found, fresh] = site_index_.emplace(key, (uint32_t)sites.size());
    if (fresh) {
        sites.push_back({pc, shared_name, argument, access, bytes});
        open_.emplace_back();
        seen_.push_back(0);
    }
    return found->second;
}

bool MemoryModel::first_time(ProblemKind kind, const void *pc, const void *other, bool blocks) {
    uint64_t key = (((uint64_t)pc * 31 + (uint64_t)other) * 31 + kind) * 2 + blocks;
    return reported_.insert(key).second;
}
