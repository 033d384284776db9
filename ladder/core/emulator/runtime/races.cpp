// Races: accesses whose order nothing settles.
//
// Two accesses to the same bytes by different agents, at least one of them a write and not both
// atomic, race unless something orders them (clocks.h):
//   - a barrier at which both threads were, or an arrival and a wait at the same mbarrier;
//   - a __syncwarp of both lanes (a shuffle orders nothing);
//   - for what cp.async, memcpy_async, TMA and wgmma do, also the wait of the thread that started them, or of
//     those that wait for the mbarrier which counts the copy;
//   - before TMA or wgmma access what threads have written, also a proxy fence;
//   - between blocks of ranks, a signal and a wait for the same flag;
//   - between other blocks, which may run in any order, only this: one block writes, fences and then
//     does an atomic, and the other does an atomic after that before it reads.
#include <algorithm>
#include <cstring>
#include <utility>

#include "scheduler.h"

using namespace emulator;

MemoryModel::Cell &MemoryModel::Shadow::at(size_t index) {
    std::unique_ptr<Cell[]> &chunk = chunks[index / CHUNK];
    if (!chunk) chunk.reset(new Cell[CHUNK]());
    return chunk[index % CHUNK];
}

// What is missing between an earlier access and one of the running thread; null: they are ordered.
const char *MemoryModel::unordered(const Worker &worker, const Stamp &before, const Actor &actor,
                                   bool shared) const {
    if (before.serial == 0) return nullptr;
    int fiber = worker.number_of(*static_cast<const Fiber *>(current.thread));
    bool same_cluster = before.serial >= cluster_start_;
    if (same_cluster) {
        const Agent &agent = agents_[before.agent];
        bool known = true;
        for (int i = 0; i < (agent.kind == WGMMA ? 4 : 1); i++)
            known &= clocks.seen(fiber, (int)before.agent + i) >= before.time;
        if (known) {
            bool generic_write = sites[before.site].access != ACCESS_READ &&
                                 agent.kind != TMA_LOAD && agent.kind != WGMMA;
            bool visible = !actor.async_proxy || !generic_write ||
                           clocks.fenced(fiber, (int)before.agent) >= before.time;
            return visible ? nullptr : "no proxy fence (tma_store_fence)";
        }
        if (agent.kind == CP_ASYNC) return "no cp_async_wait and barrier";
        if (agent.kind == MEMCPY) return "no wait for the copy and barrier";
        if (agent.kind == COUNTED) return "no wait at the barrier or pipeline that counts the copy";
        if (agent.kind == TMA_LOAD) return "no wait at the mbarrier that counts the copy";
        if (agent.kind == TMA_STORE) return "no tma_store_wait and barrier";
        if (agent.kind == WGMMA) return "no wgmma_wait and barrier";
        if (worker.fibers[before.fiber].member == worker.fibers[fiber].member) return "no barrier";
        if (shared) return "no cluster barrier";
        if (launch_.options->ranks) return "no signal and wait";
    } else if (shared) {
        return nullptr;  // a block's shared memory is its own
    }
    const Published &theirs = published_[before.block];
    const Published &ours = published_[worker.members[worker.fibers[fiber].member]->number];
    bool ordered = theirs.view && View::at(theirs.view->seen, (int)before.agent) >= before.time &&
                   theirs.released <= ours.acquired;
    return ordered ? nullptr : "nothing that orders the blocks";
}

void MemoryModel::check_race(Worker &worker, const Actor &actor, Shadow &shadow, uint32_t site,
                             const Where &where, int64_t offset, const char *at) {
    bool shared = where.shared_name, writes = sites[site].access != ACCESS_READ;
    bool atomic = sites[site].access == ACCESS_ATOMIC;
    int fiber = worker.running();
    auto warp = [&](uint32_t fiber) { return worker.warp_of(worker.fibers[fiber]); };
    Stamp now{site, serial_, worker.member().number, (uint32_t)actor.agent, actor.time,
              (uint32_t)fiber};
    auto check = [&](const Stamp &before) {
        const char *cause = unordered(worker, before, actor, shared);
        if (cause) report_race(worker, actor, site, before, where, cause);
        return cause != nullptr;
    };
    size_t last = (offset + where.bytes - 1) / shadow.granule;
    for (size_t i = offset / shadow.granule; i <= last; i++) {
        Cell &cell = shadow.at(i);
        bool both_atomic =
            atomic && cell.write.serial && sites[cell.write.site].access == ACCESS_ATOMIC;
        // The copies of TMA that one phase of an mbarrier counts may come in any order, but each
        // fills bytes of its own: two that write the same bytes do race.
        bool same_instruction = writes && !atomic && cell.write.site == site &&
                                cell.write.serial >= cluster_start_ &&
                                agents_[cell.write.agent].kind == THREAD &&
                                agents_[actor.agent].kind == THREAD &&
                                warp(cell.write.fiber) == warp(now.fiber);
        if (same_instruction && where.bytes <= (int)sizeof doubtful_.before) {
            const char *cause = unordered(worker, cell.write, actor, shared);
            if (cause) doubt(race(worker, actor, site, cell.write, where, cause), at, where.bytes);
        } else if (!both_atomic) {
            check(cell.write);
        }
        if (!actor.leaves_stamp) continue;
        if (writes) {
            if (!check(cell.read)) check(cell.other_read);
            cell.write = now;
            continue;
        }
        // Two readers are kept, of two blocks if there were two, of two warps else, or two threads:
        // whoever writes next is not ordered after at least one of them, unless after all.
        Stamp &read = cell.read, &other = cell.other_read;
        bool of_another_block = read.serial < cluster_start_;
        if ((of_another_block || read.agent != now.agent) &&
            unordered(worker, read, actor, shared)) {
            bool nearer = other.serial >= cluster_start_ &&
                          (warp(read.fiber) != warp(now.fiber) ||
                           warp(other.fiber) == warp(now.fiber));
            if (of_another_block || nearer || !unordered(worker, other, actor, shared))
                other = read;
        }
        read = now;
    }
}

void MemoryModel::report_race(Worker &worker, const Actor &actor, uint32_t site,
                              const Stamp &before, const Where &where, const char *cause) {
    bool blocks = before.block != worker.member().number;  // where a barrier is no remedy
    if (first_time(RACE, sites[site].pc, sites[before.site].pc, blocks))
        launch_.add(race(worker, actor, site, before, where, cause));
}

// Lanes of a warp that write to one place with one instruction: "which thread performs the final
// write is undefined" (CUDA C++ Programming Guide, SIMT architecture), so it is a race unless they
// all write the same value. That shows after the write, at the next access.
void MemoryModel::doubt(const Problem &problem, const char *at, int bytes) {
    doubtful_.problem = problem;
    doubtful_.at = at;
    doubtful_.bytes = bytes;
    std::memcpy(doubtful_.before, at, bytes);
}

void MemoryModel::settle_doubt() {
    const char *at = std::exchange(doubtful_.at, nullptr);
    if (!at || !std::memcmp(at, doubtful_.before, doubtful_.bytes)) return;
    const Place &mine = doubtful_.problem.place, &theirs = doubtful_.problem.other;
    if (first_time(RACE, (const void *)mine.pc, (const void *)theirs.pc))
        launch_.add(doubtful_.problem);
}

Problem MemoryModel::race(Worker &worker, const Actor &actor, uint32_t site, const Stamp &before,
                          const Where &where, const char *cause) const {
    const SiteCount &mine = sites[site], &theirs = sites[before.site];
    Problem problem = worker.problem(RACE, mine.pc);
    problem.place.access = mine.access;
    problem.place.agent = agents_[actor.agent].kind;
    if (launch_.records) problem.place.serial = serial_;
    problem.other = worker.place(worker.fibers[before.fiber], theirs.pc);
    problem.other.access = theirs.access;
    problem.other.serial = before.serial >= cluster_start_ ? before.serial : 0;
    if (before.serial >= cluster_start_) problem.other.agent = agents_[before.agent].kind;
    const dim3 &grid = worker.members[0]->block.grid;
    problem.other.block[0] = before.block % grid.x;
    problem.other.block[1] = before.block / grid.x % grid.y;
    problem.other.block[2] = before.block / grid.x / grid.y;
    problem.where = where;
    std::strcpy(problem.text, cause);
    return problem;
}
