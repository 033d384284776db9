#include "memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "scheduler.h"

using namespace emulator;

static constexpr int SECTOR = 32;  // bytes of global memory that are fetched together
static constexpr int BANKS = 32;   // of shared memory, each 4 bytes wide

// ---- shared memory -----------------------------------------------------------------------------

SharedMemory::~SharedMemory() { release(); }

void SharedMemory::release() {
    for (SharedArray &array : arrays_) std::free(array.begin);
    arrays_.clear();
}

void SharedMemory::clear(bool counting) {
    for (SharedArray &array : arrays_) {
        std::memset(array.begin, 0xff, array.bytes);
        if (counting) array.written.assign(array.bytes, 0);
    }
}

void *SharedMemory::array(const void *key, const char *name, size_t bytes, bool counting) {
    for (SharedArray &array : arrays_)
        if (array.key == key) return array.begin;
    // 1024 bytes is the largest alignment that the hardware asks for (128-byte swizzle).
    char *begin = (char *)std::aligned_alloc(1024, (bytes / 1024 + 1) * 1024);
    std::memset(begin, 0xff, bytes);
    arrays_.push_back({key, name, begin, bytes, std::vector<uint8_t>(counting ? bytes : 0)});
    return begin;
}

SharedArray *SharedMemory::find(const void *address) {
    for (SharedArray &array : arrays_)
        if ((size_t)((const char *)address - array.begin) < array.bytes) return &array;
    return nullptr;
}

// ---- accesses ----------------------------------------------------------------------------------

MemoryModel::MemoryModel(Launch &launch, int threads)
    : launch_(launch), clocks_(launch.block_order.size()), warp_epochs_(threads),
      releases_(threads), acquired_(threads), logs_(threads) {}

static bool within(const void *address, const void *begin, size_t bytes) {
    return (size_t)((const char *)address - (const char *)begin) < bytes;
}

void MemoryModel::access(Worker &worker, const void *address, int bytes, Access access,
                         const void *pc) {
    const char *at = (const char *)address;
    // Not the kernel's memory: local variables, threadIdx and its kind, constants in the program.
    if (worker.stacks.contains(at) ||
        within(at, worker.fibers.data(), worker.fibers.size() * sizeof(Fiber)) ||
        within(at, worker.gathered.data(), worker.gathered.size() * sizeof(uint64_t)) ||
        within(at, &worker.block, sizeof worker.block) || within(at, &current, sizeof current) ||
        (at >= launch_.code_begin && at < launch_.code_end))
        return;
    Where where;
    where.bytes = bytes;
    const char *begin = nullptr;
    int64_t size = 0;
    int granule = 2;
    SharedArray *array = worker.shared.find(at);
    if (array) {
        begin = array->begin, size = (int64_t)array->bytes;
        where.shared_name = array->name;
    } else {
        for (const Buffer &buffer : launch_.buffers) {
            if (!within(at, buffer.begin, buffer.bytes)) continue;
            if (buffer.element_bytes == 0) return;  // a structure passed by value
            begin = buffer.begin, size = buffer.bytes;
            granule = std::min(4, buffer.element_bytes);
            where.argument = buffer.argument;
            break;
        }
    }
    where.offset = begin ? at - begin : (int64_t)at;
    if (!begin || where.offset + bytes > size) {
        Problem problem{};
        problem.kind = OUT_OF_BOUNDS;
        problem.fatal = 1;
        problem.place = worker.place(worker.fiber(), pc);
        problem.place.access = access;
        problem.where = where;
        launch_.add(problem);
        worker.abandon();
    }
    time_++;
    uint32_t site = find_site(pc, where.shared_name, where.argument, access, bytes);
    int fiber = (int)(&worker.fiber() - worker.fibers.data());
    if (array) {
        uint8_t *written = &array->written[where.offset];
        if (access == ACCESS_WRITE) {
            std::memset(written, 1, bytes);
        } else if (std::memchr(written, 0, bytes) && first_time(UNINITIALISED, pc, nullptr)) {
            Problem problem{};
            problem.kind = UNINITIALISED;
            problem.place = worker.place(worker.fiber(), pc);
            problem.place.access = access;
            problem.where = where;
            launch_.add(problem);
        }
    }
    auto shadow = shadows_.find(begin);
    if (shadow == shadows_.end()) {
        shadow = shadows_.emplace(begin, Shadow{granule, {}}).first;
        shadow->second.chunks.resize(size / granule / Shadow::CHUNK + 1);
    }
    check_race(worker, shadow->second, site, where);
    logs_[fiber].push_back({site, where.offset});
}

uint32_t MemoryModel::find_site(const void *pc, const char *shared_name, int argument,
                                Access access, int bytes) {
    uint64_t key = (uint64_t)pc;
    for (uint64_t part : {(uint64_t)shared_name, (uint64_t)argument, (uint64_t)access,
                          (uint64_t)bytes})
        key = (key ^ part) * 0x9E3779B97F4A7C15ull, key ^= key >> 29;
    auto [found, fresh] = site_index_.emplace(key, (uint32_t)sites.size());
    if (fresh) {
        SiteCount site{};
        site.pc = pc;
        site.shared_name = shared_name;
        site.argument = argument;
        site.access = access;
        site.bytes = bytes;
        sites.push_back(site);
        open_.emplace_back();
        seen_.push_back(0);
    }
    return found->second;
}

bool MemoryModel::first_time(ProblemKind kind, const void *pc, const void *other) {
    uint64_t key = ((uint64_t)pc * 31 + (uint64_t)other) * 31 + kind;
    return reported_.insert(key).second;
}

// ---- races -------------------------------------------------------------------------------------
// Two accesses to the same bytes by different threads, at least one of them a write and not both
// atomic, race unless something orders them:
//   - a __syncthreads between them, or a __syncwarp within a warp (a shuffle orders nothing);
//   - a release by the one thread and an acquire by the other (a barrier in shared memory);
//   - between blocks, which may run in any order, only this: one block writes, fences and then
//     does an atomic, and the other does an atomic after that before it reads.

MemoryModel::Cell &MemoryModel::Shadow::at(size_t index) {
    std::unique_ptr<Cell[]> &chunk = chunks[index / CHUNK];
    if (!chunk) chunk.reset(new Cell[CHUNK]());
    return chunk[index % CHUNK];
}

bool MemoryModel::ordered(const Stamp &before, const Worker &worker, int fiber,
                          bool shared) const {
    const dim3 &grid = worker.block.grid;
    const uint3 &index = worker.block.index;
    uint32_t block = index.x + grid.x * (index.y + grid.y * index.z);
    if (before.time == 0) return true;
    if (before.block != block) {
        if (shared) return true;  // each block has shared memory of its own
        const Clock &theirs = clocks_[before.block], &ours = clocks_[block];
        return before.time <= theirs.released_fence && theirs.released <= ours.acquired;
    }
    if (before.fiber == fiber || before.epoch != worker.barrier_epoch) return true;
    const std::vector<uint32_t> &releases = releases_[before.fiber];
    auto release = std::lower_bound(releases.begin(), releases.end(), before.time);
    if (release != releases.end() && *release <= acquired_[fiber]) return true;
    return before.fiber / worker.block.warp_size == fiber / worker.block.warp_size &&
           before.warp_epoch != warp_epochs_[fiber];
}

void MemoryModel::check_race(Worker &worker, Shadow &shadow, uint32_t site, const Where &where) {
    const dim3 &grid = worker.block.grid;
    const uint3 &index = worker.block.index;
    int fiber = (int)(&worker.fiber() - worker.fibers.data()), width = worker.block.warp_size;
    bool shared = where.shared_name, writes = sites[site].access != ACCESS_READ;
    bool atomic = sites[site].access == ACCESS_ATOMIC;
    Stamp now;
    now.site = site;
    now.time = time_;
    now.block = index.x + grid.x * (index.y + grid.y * index.z);
    now.epoch = worker.barrier_epoch;
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
            bool other_warp = read.fiber / width != fiber / width;
            if (other_warp || !kept || other.fiber / width == fiber / width) other = read;
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
    const dim3 &grid = worker.block.grid;
    problem.other.block[0] = before.block % grid.x;
    problem.other.block[1] = before.block / grid.x % grid.y;
    problem.other.block[2] = before.block / grid.x / grid.y;
    problem.where = where;
    launch_.add(problem);
}

void MemoryModel::fence(Worker &worker) {
    const dim3 &grid = worker.block.grid;
    const uint3 &index = worker.block.index;
    clocks_[index.x + grid.x * (index.y + grid.y * index.z)].fence = time_;
}

void MemoryModel::release(Worker &worker) {
    releases_[&worker.fiber() - worker.fibers.data()].push_back(++time_);
}

void MemoryModel::acquire(Worker &worker) {
    acquired_[&worker.fiber() - worker.fibers.data()] = ++time_;
}

// The hardware has written shared memory: whoever waits for it in the right way may read it.
void MemoryModel::written(Worker &worker, void *address, size_t bytes) {
    SharedArray *array = worker.shared.find(address);
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

// ---- counting ----------------------------------------------------------------------------------

// The n-th access of each lane through one instruction, since the lanes last met, is taken to be
// one request of the warp: the GPU executes lanes that are at the same instruction together.
void MemoryModel::finish_warp(Worker &worker, int warp) {
    int width = worker.block.warp_size, first = warp * width;
    int end = std::min(first + width, (int)logs_.size());
    std::vector<uint32_t> used;
    for (int fiber = first; fiber < end; fiber++) {
        std::fill(seen_.begin(), seen_.end(), 0);
        for (const Entry &entry : logs_[fiber]) {
            std::vector<Open> &requests = open_[entry.site];
            uint32_t nth = seen_[entry.site]++;
            if (nth == requests.size()) {
                if (nth == 0) used.push_back(entry.site);
                requests.emplace_back();
            }
            requests[nth].lanes |= 1ull << (fiber - first);
            requests[nth].offsets[fiber - first] = entry.offset;
        }
        logs_[fiber].clear();
    }
    for (uint32_t index : used) {
        SiteCount &site = sites[index];
        for (const Open &open : open_[index]) {
            if (site.requests < launch_.options->trace) {
                Request request{};
                request.site = (int)index;
                request.warp = warp;
                request.lanes = open.lanes;
                const uint3 &block = worker.block.index;
                request.block[0] = block.x, request.block[1] = block.y, request.block[2] = block.z;
                std::memcpy(request.offsets, open.offsets, sizeof request.offsets);
                requests.push_back(request);
            }
            count(site, open);
        }
        open_[index].clear();
    }
}

void MemoryModel::finish_block(Worker &worker) {
    int warps = ((int)logs_.size() + worker.block.warp_size - 1) / worker.block.warp_size;
    for (int warp = 0; warp < warps; warp++) finish_warp(worker, warp);
    std::fill(warp_epochs_.begin(), warp_epochs_.end(), 0);
    std::fill(acquired_.begin(), acquired_.end(), 0);
    for (auto &releases : releases_) releases.clear();
}

static size_t distinct(std::vector<int64_t> &values) {
    std::sort(values.begin(), values.end());
    return std::unique(values.begin(), values.end()) - values.begin();
}

void MemoryModel::count(SiteCount &site, const Open &request) const {
    site.requests++;
    site.lanes += __builtin_popcountll(request.lanes);
    if (!site.shared_name) {
        // Ideal: as many sectors as the different bytes would fill.
        std::vector<int64_t> sectors, starts;
        for (uint64_t rest = request.lanes; rest; rest &= rest - 1) {
            int64_t offset = request.offsets[__builtin_ctzll(rest)];
            starts.push_back(offset);
            int64_t last = (offset + site.bytes - 1) / SECTOR;
            for (int64_t sector = offset / SECTOR; sector <= last; sector++)
                sectors.push_back(sector);
        }
        site.sectors += distinct(sectors);
        site.ideal_sectors += (distinct(starts) * site.bytes + SECTOR - 1) / SECTOR;
        return;
    }
    // A wavefront serves each bank one word (to any number of lanes). It carries 128 bytes, so
    // lanes go in groups of 32, 16 or 8, depending on how much each one asks for.
    int lanes_together = site.bytes <= 4 ? 32 : site.bytes == 8 ? 16 : 8;
    for (int first = 0; first < 64; first += lanes_together) {
        uint64_t group = request.lanes >> first;
        if (lanes_together < 64) group &= (1ull << lanes_together) - 1;
        if (!group) continue;
        std::vector<int64_t> words;
        for (; group; group &= group - 1) {
            int64_t offset = request.offsets[first + __builtin_ctzll(group)];
            int64_t last = (offset + site.bytes - 1) / 4;
            for (int64_t word = offset / 4; word <= last; word++) words.push_back(word);
        }
        words.resize(distinct(words));
        int in_bank[BANKS] = {}, most = 0;
        for (int64_t word : words) most = std::max(most, ++in_bank[word % BANKS]);
        site.wavefronts += most;
        site.ideal_wavefronts++;
    }
}
