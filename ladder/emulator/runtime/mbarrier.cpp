// Barriers of parts of a block and of a cluster, and barriers in shared memory (mbarrier).
//
// An mbarrier is kept here and not in the kernel's memory, where only its address counts.
#include <cstdio>
#include <cstring>

#include "scheduler.h"

using namespace emulator;

#define CALLER __builtin_return_address(0)

static constexpr int MOST_BYTES = (1 << 20) - 1;  // that a phase can expect

std::string Worker::name_of(const SharedPlace &place) const {
    if (!place.array) return "shared memory";
    return place.array->name;
}

std::string Worker::name_of(const Mbarrier &barrier) const {
    const SharedArray *array = layout.find(barrier.offset);
    if (!array) return "shared memory";
    std::string name = array->name;
    if (array->bytes <= 8) return name;
    return name + "[" + std::to_string((barrier.offset - array->offset) / 8) + "]";
}

// The barrier at this address, or at the same place of block `rank`; it must be initialised.
Mbarrier &Worker::find_mbarrier(const void *address, int rank, const void *pc) {
    SharedPlace place = find_shared(address);
    if (place.member < 0)
        refuse(MBARRIER, pc, "uses an mbarrier that lies outside of shared memory");
    if (rank >= (int)members.size())
        refuse(MBARRIER, pc, "uses a barrier of block %d of a cluster of %zu blocks", rank,
               members.size());
    if (rank >= 0) place.member = rank;
    for (Mbarrier &barrier : members[place.member]->mbarriers) {
        if (barrier.offset != place.offset) continue;
        if (members[place.member]->running == 0) {
            left_too_early(place.member, fiber(), pc);
            abandon();
        }
        if (launch->memory) {
            launch->memory->use_barrier(*this, barrier, pc);
            if (place.member != fiber().member)
                launch->memory->touch_peer(*this, place.member, number_of(fiber()),
                                           launch->memory->now(*this), pc);
        }
        return barrier;
    }
    Mbarrier unknown{};
    unknown.offset = place.offset;
    refuse(MBARRIER, pc, "uses the mbarrier %s%s before mbarrier_init", name_of(unknown).c_str(),
           place.member == fiber().member ? "" : " of another block");
}

// Begins the next phase if nothing is missing in this one.
void Worker::complete(Mbarrier &barrier) {
    if (barrier.missing_threads || barrier.missing_bytes) return;
    barrier.phases++;
    barrier.missing_threads = barrier.count;
    if (launch->memory) launch->memory->complete_phase(barrier);
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
                Problem problem{};
                problem.kind = DIVERGENT_BARRIER;
                problem.place = place(other, &other == &fiber() ? pc : other.pc);
                problem.other = place(waited, waited.last_wait);
                std::strcpy(problem.text, "cluster");
                launch->add(problem);
                break;
            }
        }
        for (Fiber *lane = first; lane < first + warp.count; lane++) lane->waits = 0;
    }
}

extern "C" {
namespace emulator {

void emulator_mbarrier_init(void *address, int count) {
    Worker &worker = *this_worker;
    SharedPlace place = worker.find_shared(address);
    if (place.member < 0 || place.offset % 8)
        worker.refuse(MBARRIER, CALLER,
                      "initialises an mbarrier that is not 8 bytes of shared memory at a multiple "
                      "of 8");
    Mbarrier barrier{};
    barrier.member = place.member;
    barrier.offset = place.offset;
    for (const Mbarrier &other : worker.members[place.member]->mbarriers)
        if (other.offset == place.offset)
            worker.refuse(MBARRIER, CALLER, "initialises the mbarrier %s again",
                          worker.name_of(barrier).c_str());
    if (count < 1 || count > MOST_BYTES)
        worker.refuse(MBARRIER, CALLER, "initialises an mbarrier for %d threads", count);
    barrier.count = barrier.missing_threads = count;
    barrier.pc = CALLER;
    barrier.agent = -1;
    barrier.maker = worker.number_of(worker.fiber());
    if (worker.launch->memory) {
        barrier.made = worker.launch->memory->now(worker);
        worker.record(address, 8, ACCESS_WRITE, CALLER);
    }
    worker.members[place.member]->mbarriers.push_back(std::move(barrier));
}

void emulator_mbarrier_arrive(void *address, int rank, int bytes) {
    Worker &worker = *this_worker;
    Mbarrier &barrier = worker.find_mbarrier(address, rank, CALLER);
    if (barrier.missing_threads == 0)
        worker.refuse(MBARRIER, CALLER,
                      "arrives at the mbarrier %s once more before phase %u has ended: all %d "
                      "threads have arrived already, and %d bytes have yet to be copied",
                      worker.name_of(barrier).c_str(), barrier.phases, barrier.count,
                      barrier.missing_bytes);
    if (bytes < 0 || barrier.missing_bytes + bytes > MOST_BYTES)
        worker.refuse(MBARRIER, CALLER, "expects %d bytes at the mbarrier %s; %d are possible",
                      barrier.missing_bytes + bytes, worker.name_of(barrier).c_str(), MOST_BYTES);
    if (worker.launch->memory) worker.launch->memory->release(worker, barrier.arrived);
    barrier.missing_bytes += bytes;
    barrier.missing_threads--;
    worker.complete(barrier);
    // A thread that hands over a stage lets others use it before it goes on itself.
    bool gives_way = worker.launch->options->early && bytes == 0;
    for (int i = 0; gives_way && i < 2; i++) worker.yield(State::polling, CALLER);
}

void emulator_mbarrier_wait(void *address, int parity) {
    Worker &worker = *this_worker;
    Mbarrier &barrier = worker.find_mbarrier(address, -1, CALLER);
    if (parity != 0 && parity != 1)
        worker.refuse(MBARRIER, CALLER,
                      "waits at the mbarrier %s for parity %d, which is not 0 or 1",
                      worker.name_of(barrier).c_str(), parity);
    Fiber &fiber = worker.fiber();
    fiber.parity = parity;
    fiber.waits_at = &barrier;
    while (barrier.is_in(parity)) worker.yield(State::polling, CALLER);
    fiber.waits_at = nullptr;
    fiber.waits++;
    fiber.last_wait = CALLER;
    if (worker.launch->memory) worker.launch->memory->acquire(worker, barrier.completed);
}

void emulator_named_barrier(int id, int threads) {
    Worker &worker = *this_worker;
    bool of_cluster = id == CLUSTER_BARRIER;
    int block = (int)(worker.fibers.size() / worker.members.size());
    if (of_cluster) {
        threads = (int)worker.fibers.size();
    } else if (id < 1 || id > 15) {
        worker.refuse(MBARRIER, CALLER,
                      "waits at the named barrier %d; there are those from 1 to 15", id);
    } else if (threads <= 0 || threads % worker.warp_size || threads > block) {
        worker.refuse(MBARRIER, CALLER,
                      "waits at the named barrier %d for %d threads: it takes whole warps of its "
                      "block",
                      id, threads);
    }
    NamedBarrier &barrier =
        of_cluster ? worker.cluster_barrier : worker.member().named_barriers[id];
    if (barrier.arrived && barrier.threads != threads)
        worker.refuse(MBARRIER, CALLER,
                      "waits at the named barrier %d for %d threads, and others wait there for %d",
                      id, threads, barrier.threads);
    MemoryModel *memory = worker.launch->memory.get();
    int generation = barrier.generation;
    barrier.threads = threads;
    if (memory) memory->release(worker, barrier.arriving);
    if (++barrier.arrived == threads) {
        if (of_cluster) worker.check_converged(CALLER);
        barrier.arrived = 0;
        barrier.generation++;
        if (memory) barrier.opened = std::move(barrier.arriving), barrier.arriving = View();
    }
    Fiber &fiber = worker.fiber();
    fiber.waits_with = &barrier;
    while (barrier.generation == generation) worker.yield(State::polling, CALLER);
    fiber.waits_with = nullptr;
    if (memory) memory->acquire(worker, barrier.opened);
}

}  // namespace emulator
}  // extern "C"
