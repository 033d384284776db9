// Races: accesses whose order nothing settles.
//
// Two accesses to the same bytes by different threads, at least one of them a write and not both
// atomic, race unless something orders them:
//   - a __syncthreads between them, or a __syncwarp within a warp (a shuffle orders nothing);
//   - a release by the one thread and an acquire by the other (a barrier in shared memory);
//   - between blocks, which may run in any order, only this: one block writes, fences and then
//     does an atomic, and the other does an atomic after that before it reads.
#include <algorithm>
#include <cstring>

#include "scheduler.h"

using namespace emulator;

MemoryModel::Cell &MemoryModel::Shadow::at(size_t index) {
    std::unique_ptr<Cell[]> &chunk = chunks[index / CHUNK];
    if (!chunk) chunk.reset(new Cell[CHUNK]());
    return chunk[index % CHUNK];
}

bool MemoryModel::ordered(const Stamp &before, const Worker &worker, int fiber,
                          bool shared) const {
    const Member &member = *worker.members[worker.fibers[fiber].member];
    uint32_t block = member.number;
    if (before.time == 0) return true;
    if (before.block != block) {
        if (shared) return true;  // each block has shared memory of its own
        const Clock &theirs = clocks_[before.block], &ours = clocks_[block];
        return before.time <= theirs.released_fence && theirs.released <= ours.acquired;
    }
    if (before.fiber == fiber || before.epoch != member.barrier_epoch) return true;
    const std::vector<uint32_t> &releases = releases_[before.fiber];
    auto release = std::lower_bound(releases.begin(), releases.end(), before.time);
    if (release != releases.end() && *release <= acquired_[fiber]) return true;
    return worker.fibers[before.fiber].warp == worker.fibers[fiber].warp &&
           before.warp_epoch != warp_epochs_[fiber];
}

void MemoryModel::check_race(Worker &worker, Shadow &shadow, uint32_t site, const Where &where) {
    const Member &member = worker.member();
    int fiber = worker.number_of(worker.fiber());
    auto warp = [&](int fiber) { return worker.warp_of(worker.fibers[fiber]); };
    bool shared = where.shared_name, writes = sites[site].access != ACCESS_READ;
    bool atomic = sites[site].access == ACCESS_ATOMIC;
    Stamp now;
    now.site = site;
    now.time = time_;
    now.block = member.number;
    now.epoch = member.barrier_epoch;
    now.fiber = (uint16_t)fiber;
    now.warp_epoch = warp_epochs_[fiber];
    if (atomic && !shared) {
        Clock &clock = clocks_[now.block];
        clock.acquired = time_;
        if (clock.fence) clock.released_fence = clock.fence, clock.released = time_;
    }
    size_t last = (where.offset + where.bytes - 1) / shadow.granule;
    for (size_t i = where.offset / shadow.granule; i <= last; i++) {
        Cell &cell = shadow.at(i);
        bool both_atomic = atomic && cell.write.time && sites[cell.write.site].access == ACCESS_ATOMIC;
        if (!both_atomic && !ordered(cell.write, worker, fiber, shared))
            report_race(worker, site, cell.write, where);
        if (writes) {
            if (!ordered(cell.read, worker, fiber, shared))
                report_race(worker, site, cell.read, where);
            else if (!ordered(cell.other_read, worker, fiber, shared))
                report_race(worker, site, cell.other_read, where);
            cell.write = now;
            continue;
        }
        // Two readers are kept, of two warps if there were two, of two threads else: whoever
        // writes next is not ordered after at least one of them, unless after all.
        Stamp &read = cell.read, &other = cell.other_read;
        bool same_time = read.block == now.block && read.epoch == now.epoch;
        bool kept = other.time && other.block == now.block && other.epoch == now.epoch;
        if (read.time && same_time && read.fiber != fiber) {
            bool other_warp = warp(read.fiber) != warp(fiber);
            if (other_warp || !kept || warp(other.fiber) == warp(fiber)) other = read;
        }
        read = now;
    }
}

void MemoryModel::report_race(Worker &worker, uint32_t site, const Stamp &before,
                              const Where &where) {
    const SiteCount &mine = sites[site], &theirs = sites[before.site];
    if (!first_time(RACE, mine.pc, theirs.pc)) return;
    Problem problem{};
    problem.kind = RACE;
    problem.place = worker.place(worker.fiber(), mine.pc);
    problem.place.access = mine.access;
    problem.other = worker.place(worker.fibers[before.fiber], theirs.pc);
    problem.other.access = theirs.access;
    const dim3 &grid = worker.members[0]->block.grid;
    problem.other.block[0] = before.block % grid.x;
    problem.other.block[1] = before.block / grid.x % grid.y;
    problem.other.block[2] = before.block / grid.x / grid.y;
    problem.where = where;
    launch_.add(problem);
}

void MemoryModel::fence(Worker &worker) {
    clocks_[worker.member().number].fence = time_;
}

void MemoryModel::release(Worker &worker) {
    releases_[worker.number_of(worker.fiber())].push_back(++time_);
}

void MemoryModel::acquire(Worker &worker) {
    acquired_[worker.number_of(worker.fiber())] = ++time_;
}

// The hardware has written shared memory: whoever waits for it in the right way may read it.
void MemoryModel::written(Worker &worker, void *address, size_t bytes) {
    SharedArray *array = worker.find_shared(address);
    if (!array) return;
    size_t offset = (char *)address - array->begin;
    bytes = std::min(bytes, array->bytes - offset);
    std::memset(&array->written[offset], 1, bytes);
    auto shadow = shadows_.find(array->begin);
    if (shadow == shadows_.end()) return;
    int granule = shadow->second.granule;
    for (size_t i = offset / granule; i <= (offset + bytes - 1) / granule; i++)
        shadow->second.at(i) = Cell();
}
