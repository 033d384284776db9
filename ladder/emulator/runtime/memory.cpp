// Shared memory, and what happens at each access in counting mode. See also races.cpp, counts.cpp.
#include "memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "scheduler.h"

using namespace emulator;

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

MemoryModel::MemoryModel(Launch &launch, int blocks, int threads)
    : launch_(launch), clocks_(blocks), warp_epochs_(threads),
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
        within(at, current.block, sizeof *current.block) || within(at, &current, sizeof current) ||
        (at >= launch_.code_begin && at < launch_.code_end))
        return;
    Where where;
    where.bytes = bytes;
    const char *begin = nullptr;
    int64_t size = 0;
    int granule = 2;
    SharedArray *array = worker.find_shared(at);
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
    int fiber = worker.number_of(worker.fiber());
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
