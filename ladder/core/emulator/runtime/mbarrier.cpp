// Barriers of parts of a block and of a cluster, and barriers in shared memory (mbarrier).
//
// An mbarrier is kept here and not in the kernel's memory, where only its address counts.
#include <cstdio>

#include "scheduler.h"

using namespace emulator;

static constexpr int MOST_COUNT = (1 << 20) - 1;  // of the threads and bytes of a phase

// "the mbarrier full[0]", or "the barrier done", or which part of which pipeline it is.
std::string Worker::title_of(const Mbarrier &barrier) const {
    const SharedArray *array = layout.find(barrier.offset);
    std::string name = array ? array->name : "shared memory";
    size_t number = array ? (barrier.offset - array->offset) / 8 : 0;
    if (barrier.kind == STAGE_FILLED || barrier.kind == STAGE_FREED)
        return "stage " + std::to_string(number / 2) + " of the pipeline " + name +
               (barrier.kind == STAGE_FILLED ? ", which producer_commit fills,"
                                             : ", which consumer_release frees,");
    if (array && array->bytes > 8) name += "[" + std::to_string(number) + "]";
    return (barrier.kind == MBARRIER ? "the mbarrier " : "the barrier ") + name;
}

// The barrier at this address, or at the same place of block `rank`; it must be initialised.
Mbarrier &Worker::find_mbarrier(const void *address, int rank, const void *pc,
                                BarrierKind kind) {
    SharedPlace place = find_shared(address);
    if (place.member < 0)
        refuse(BARRIER_MISUSE, pc, "uses a barrier that lies outside of shared memory");
    if (rank >= (int)members.size())
        refuse(BARRIER_MISUSE, pc, "uses a barrier of block %d of a cluster of %zu blocks", rank,
               members.size());
    if (rank >= 0) place.member = rank;
    for (Mbarrier &barrier : members[place.member]->mbarriers) {
        if (barrier.offset != place.offset || barrier.ended) continue;
        if (members[place.member]->running == 0) {
            left_too_early(place.member, fiber(), pc);
            abandon();
        }
        if (launch->memory) {
            launch->memory->use_barrier(*this, barrier, pc);
            if (place.member != fiber().member)
                launch->memory->touch_peer(*this, place.member, running(),
                                           launch->memory->clocks.now(running()), pc);
        }
        return barrier;
    }
    Mbarrier unknown{kind, place.member, place.offset};
    refuse(BARRIER_MISUSE, pc, "uses %s%s before %s", title_of(unknown).c_str(),
           place.member == fiber().member ? "" : " of another block",
           kind == MBARRIER ? "mbarrier_init" : kind == BARRIER ? "init" : "make_pipeline");
}

// Begins the next phase if nothing is missing in this one.
void Worker::complete(Mbarrier &barrier) {
    if (barrier.missing_threads || barrier.missing_bytes) return;
    note("ends", barrier, barrier.phases, nullptr);
    barrier.phases++;
    barrier.missing_threads = barrier.count;
    if (launch->memory) launch->memory->complete_phase(barrier);
}

Mbarrier &Worker::init(void *address, int64_t count, BarrierKind kind, const void *pc) {
    SharedPlace place = find_shared(address);
    if (place.member < 0 || place.offset % 8)
        refuse(BARRIER_MISUSE, pc,
               "initialises a barrier that is not 8 bytes of shared memory at a multiple of 8");
    Mbarrier barrier{kind, place.member, place.offset};
    for (const Mbarrier &other : members[place.member]->mbarriers)
        if (other.offset == place.offset && !other.ended)
            refuse(BARRIER_MISUSE, pc, "initialises %s again", title_of(barrier).c_str());
    if (count < 1 || count > MOST_COUNT)
        refuse(BARRIER_MISUSE, pc, "initialises %s for %lld threads", title_of(barrier).c_str(),
               (long long)count);
    barrier.count = barrier.missing_threads = (int)count;
    barrier.pc = pc;
    barrier.agent = -1;
    barrier.maker = running();
    if (launch->memory) {
        barrier.made = launch->memory->clocks.now(running());
        record(address, 8, ACCESS_WRITE, pc);
    }
    members[place.member]->mbarriers.push_back(std::move(barrier));
    return members[place.member]->mbarriers.back();
}

void Worker::arrive(Mbarrier &barrier, int64_t threads, int bytes, const void *pc) {
    if (threads < 1 || barrier.missing_threads < threads)
        refuse(BARRIER_MISUSE, pc,
               "arrives at %s %s before phase %u has ended: %s%d threads have arrived already, and "
               "%d bytes have yet to be copied",
               title_of(barrier).c_str(),
               threads == 1 ? "once more" : ("for " + std::to_string(threads) + " threads").c_str(),
               barrier.phases, barrier.missing_threads ? "" : "all ",
               barrier.count - barrier.missing_threads, barrier.missing_bytes);
    if (bytes < 0 || barrier.missing_bytes + bytes > MOST_COUNT)
        refuse(BARRIER_MISUSE, pc, "expects %d bytes at %s; %d are possible",
               barrier.missing_bytes + bytes, title_of(barrier).c_str(), MOST_COUNT);
    if (launch->memory) launch->memory->clocks.release(running(), barrier.arrived);
    barrier.missing_bytes += bytes;
    barrier.missing_threads -= (int)threads;
    note("arrives", barrier, barrier.phases, pc);
    complete(barrier);
    // A thread that hands over a stage lets others use it before it goes on itself.
    bool gives_way = launch->options->early && bytes == 0;
    for (int i = 0; gives_way && i < 2; i++) yield(State::polling, pc);
}

// Waits for the end of the phase of this parity, or (parity -1) of phase number `phase`.
void Worker::wait(Mbarrier &barrier, int parity, unsigned phase, const void *pc) {
    Fiber &self = fiber();
    self.parity = parity;
    self.phase = phase;
    self.waits_at = &barrier;
    unsigned awaited = parity < 0 ? phase : barrier.phases - !self.must_wait();
    note("waits", barrier, awaited, pc);
    while (self.must_wait()) yield(State::polling, pc);
    note("waited", barrier, awaited, pc);
    self.waits_at = nullptr;
    self.waits++;
    self.last_wait = pc;
    if (launch->memory) launch->memory->clocks.acquire(running(), barrier.completed);
}

// The lanes of a warp must come to the cluster's barrier together. Lanes of which one has waited at
// mbarriers and another has not run apart, until they meet again. Called when all have come.
void Worker::check_converged(const void *pc) {
    for (const Warp &warp : warps) {
        Fiber *first = &fibers[warp.first];
        for (Fiber *lane = first; lane < first + warp.count; lane++) {
            if (lane->waits != first->waits) {
                const Fiber &waited = lane->waits > first->waits ? *lane : *first;
                const Fiber &other = &waited == lane ? *first : *lane;
                report(DIVERGENT_BARRIER, place(other, &other == &fiber() ? pc : other.pc),
                       place(waited, waited.last_wait), "cluster");
                break;
            }
        }
        for (Fiber *lane = first; lane < first + warp.count; lane++) lane->waits = 0;
    }
}

void emulator::emulator_mbarrier_arrive(void *address, int rank, int bytes) {
    Worker &worker = *this_worker;
    worker.arrive(worker.find_mbarrier(address, rank, CALLER), 1, bytes, CALLER);
}

void emulator::emulator_named_barrier(int id, int threads) {
    Worker &worker = *this_worker;
    bool of_cluster = id == CLUSTER_BARRIER;
    int block = (int)(worker.fibers.size() / worker.members.size());
    if (of_cluster) {
        threads = (int)worker.fibers.size();
    } else if (id < 1 || id > 15) {
        worker.refuse(BARRIER_MISUSE, CALLER,
                      "waits at the named barrier %d; there are those from 1 to 15", id);
    } else if (threads <= 0 || threads % worker.warp_size || threads > block) {
        worker.refuse(BARRIER_MISUSE, CALLER,
                      "waits at the named barrier %d for %d threads: it takes whole warps of its "
                      "block",
                      id, threads);
    }
    NamedBarrier &barrier =
        of_cluster ? worker.cluster_barrier : worker.member().named_barriers[id];
    if (barrier.arrived && barrier.threads != threads)
        worker.refuse(BARRIER_MISUSE, CALLER,
                      "waits at the named barrier %d for %d threads, and others wait there for %d",
                      id, threads, barrier.threads);
    MemoryModel *memory = worker.launch->memory.get();
    int generation = barrier.generation;
    int member = of_cluster ? -1 : worker.fiber().member;
    std::string name = of_cluster ? "cluster_barrier" : "barrier " + std::to_string(id);
    worker.note("meets", name.c_str(), member, generation, CALLER, barrier.arrived + 1, threads);
    barrier.threads = threads;
    if (memory) memory->clocks.release(worker.running(), barrier.arriving);
    if (++barrier.arrived == threads) {
        if (of_cluster) worker.check_converged(CALLER);
        barrier.arrived = 0;
        barrier.generation++;
        if (memory) barrier.opened = std::move(barrier.arriving), barrier.arriving = View();
    }
    Fiber &fiber = worker.fiber();
    fiber.waits_with = &barrier;
    while (barrier.generation == generation) worker.yield(State::polling, CALLER);
    worker.note("waited", name.c_str(), member, generation, CALLER, threads, threads);
    fiber.waits_with = nullptr;
    if (memory) memory->clocks.acquire(worker.running(), barrier.opened);
}
