// Memory as the kernel sees it: shared arrays, and in counting mode every access.
#pragma once
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "emulator/thread.h"
#include "results.h"

class Worker;
struct Launch;

// A buffer in global memory that was passed as an argument; Python declares the same structure.
struct Buffer {
    const char *begin;
    int64_t bytes;
    int32_t argument, element_bytes;
};

struct SharedArray {
    const void *key;  // the declaration that it belongs to; null: dynamic shared memory
    const char *name;
    char *begin;
    size_t bytes;
    std::vector<uint8_t> written;  // by byte; in counting mode
};

// The shared memory of one of a worker's blocks, used by one after the other.
class SharedMemory {
  public:
    ~SharedMemory();
    void *array(const void *key, const char *name, size_t bytes, bool counting);
    void clear(bool counting);    // a new block: all bytes 0xff, which is NaN in every real type
    void release();               // a new launch: no arrays
    SharedArray *find(const void *address);

  private:
    std::vector<SharedArray> arrays_;
};

// Counts and checks the accesses of one launch. Clusters run one after the other.
class MemoryModel {
  public:
    MemoryModel(Launch &launch, int blocks, int threads);  // threads: of a cluster

    void access(Worker &worker, const void *address, int bytes, emulator::Access access,
                const void *pc);
    void fence(Worker &worker);
    void release(Worker &worker);
    void acquire(Worker &worker);
    void written(Worker &worker, void *address, size_t bytes);
    void synchronise_lane(int fiber) { warp_epochs_[fiber]++; }
    void finish_warp(Worker &worker, int warp);  // all lanes are at the same point: count
    void finish_cluster(Worker &worker);

    std::vector<SiteCount> sites;
    std::vector<Request> requests;

  private:
    // The last access to a few bytes, as far as races are concerned.
    struct Stamp {
        uint32_t site = 0, time = 0;  // time 0: none
        uint32_t block = 0, epoch = 0;
        uint16_t fiber = 0, warp_epoch = 0;
    };
    struct Cell {
        Stamp write, read, other_read;
    };
    // Cells of one buffer or shared array, in chunks that are allocated when first touched.
    struct Shadow {
        static constexpr size_t CHUNK = 1024;
        int granule;  // bytes to a cell
        std::vector<std::unique_ptr<Cell[]>> chunks;
        Cell &at(size_t index);
    };
    // How far a block's accesses are ordered before those of others.
    struct Clock {
        uint32_t fence = 0;             // time of its last __threadfence
        uint32_t released_fence = 0;    // the last fence that an atomic followed,
        uint32_t released = 0;          // and when that atomic was
        uint32_t acquired = 0;          // time of its last atomic
    };
    struct Entry {
        uint32_t site;
        int64_t offset;
    };
    struct Open {  // a warp request whose lanes are still coming in
        uint64_t lanes = 0;
        int64_t offsets[64];
    };

    uint32_t find_site(const void *pc, const char *shared_name, int argument,
                       emulator::Access access, int bytes);
    void check_race(Worker &worker, Shadow &shadow, uint32_t site, const Where &where);
    bool ordered(const Stamp &before, const Worker &worker, int fiber, bool shared) const;
    void report_race(Worker &worker, uint32_t site, const Stamp &before, const Where &where);
    void count(SiteCount &site, const Open &request) const;
    bool first_time(ProblemKind kind, const void *pc, const void *other);

    Launch &launch_;
    std::unordered_map<uint64_t, uint32_t> site_index_;
    std::unordered_map<const char *, Shadow> shadows_;  // by the start of the memory
    std::vector<Clock> clocks_;             // by block
    std::vector<uint16_t> warp_epochs_;     // by fiber: how many __syncwarp it has passed
    std::vector<std::vector<uint32_t>> releases_;  // by fiber: when it released, in order
    std::vector<uint32_t> acquired_;        // by fiber: when it last acquired
    std::vector<std::vector<Entry>> logs_;  // by fiber: accesses not yet counted
    std::vector<std::vector<Open>> open_;   // by site, used in finish_warp
    std::vector<uint32_t> seen_;            // by site, used in finish_warp
    std::unordered_set<uint64_t> reported_;
    uint32_t time_ = 0;
};
