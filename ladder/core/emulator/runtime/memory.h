// Memory as the kernel sees it: shared arrays, and in counting mode every access.
#pragma once
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "clocks.h"
#include "emulator/thread.h"
#include "results.h"

class Worker;
struct Launch;
struct Fiber;
struct Mbarrier;

// A buffer in global memory that was passed as an argument; structures.py reads the declaration.
struct Buffer {
    const char *begin;
    int64_t bytes;
    int32_t argument, element_bytes;
    int64_t row_bytes;  // of the row of each rank, whose memory it is; 0: it belongs to no rank
    int32_t prefetched;  // whether it may be read before the end of the kernel before
};

struct SharedArray {
    const void *key;  // the declaration that it belongs to; null: dynamic shared memory
    const char *name;
    size_t offset, bytes;
};

// Where the arrays lie in shared memory: alike in all blocks of a cluster, as on the GPU.
class SharedLayout {
  public:
    static constexpr size_t BYTES = 256 << 10;  // what the 14 bits of a descriptor can address

    const SharedArray *find(const void *key) const;
    const SharedArray *find(size_t offset) const;
    const SharedArray *nearest(size_t offset) const;  // null: there are no arrays
    // At a multiple of `alignment`, and of no more: an array that needs more must say so.
    const SharedArray &add(const void *key, const char *name, size_t bytes, size_t alignment);
    size_t end() const { return end_; }
    size_t fixed_bytes() const;  // of all arrays that are not dynamic

  private:
    std::vector<SharedArray> arrays_;
    size_t end_ = 0;
};

// The shared memory of one block of a cluster.
struct SharedMemory {
    SharedMemory();
    ~SharedMemory();
    SharedMemory(const SharedMemory &) = delete;
    void clear(size_t begin, size_t end);  // all bytes 0xff, which is NaN in every real type
    bool contains(const void *address) const {
        return (size_t)((const char *)address - begin) < SharedLayout::BYTES;
    }

    char *begin;
    std::vector<uint8_t> written;  // by byte; in counting mode
};

// A place in shared memory.
struct SharedPlace {
    int member;                // whose block's, of the cluster; -1: it is no shared memory
    const SharedArray *array;  // null: between arrays
    size_t offset;             // from the start of the block's shared memory
};

// Counts and checks the accesses of one launch. Clusters run one after the other.
class MemoryModel {
  public:
    MemoryModel(Launch &launch, int blocks);

    void start_cluster(Worker &worker);
    void finish_warp(Worker &worker, int warp);  // all lanes are at the same point: count
    void finish_cluster(Worker &worker);
    void leave(Worker &worker, int member);  // all threads of a block have returned
    void end_rank(Worker &worker, int rank);  // and of a rank

    // Accesses of the running thread, and of the units that work for it.
    void access(Worker &worker, const void *address, int bytes, emulator::Access access,
                const void *pc);
    // CP_ASYNC or MEMCPY
    void copy(Worker &worker, void *to, int bytes, AgentKind by, const void *pc);
    // COUNTED or TMA_LOAD
    void copy_counted(Worker &worker, void *to, int bytes, AgentKind by, Mbarrier &barrier,
                      const void *pc);
    void store_tile(Worker &worker, const char *tile, int bytes, const void *pc);
    void read_operand(Worker &worker, const std::vector<unsigned> &pieces, const void *pc);
    void touch_peer(Worker &worker, int member, int agent, Time time, const void *pc);

    // What orders them.
    Clocks clocks;  // of the fibers, by number
    std::unordered_map<const void *, View> flags;  // what signals order, by address
    void complete(Worker &worker, std::initializer_list<AgentKind> kinds, Time groups);
    void complete_products(Worker &worker, Time groups);
    void fence(Worker &worker);  // __threadfence
    void send(Worker &worker, const unsigned *slot, unsigned flag, const void *pc);
    void receive(Worker &worker, const unsigned *slot);
    void use_barrier(Worker &worker, Mbarrier &barrier, const void *pc);
    void complete_phase(Mbarrier &barrier);
    uint32_t serial() const { return serial_; }  // of the last access

    std::vector<SiteCount> sites;
    std::vector<Request> requests;

  private:
    struct Agent {
        AgentKind kind;
        int fiber;
    };
    // The last access to a few bytes, as far as races are concerned.
    struct Stamp {
        uint32_t site = 0, serial = 0;  // serial: of all accesses of the launch; 0: none
        uint32_t block = 0;
        uint32_t agent = 0;
        Time time = 0;  // of the agent
        uint32_t fiber = 0;
    };
    struct Cell {
        Stamp write, read, other_read;
    };
    // Cells of one buffer or shared memory, in chunks that are allocated when first touched.
    struct Shadow {
        static constexpr size_t CHUNK = 1024;
        int granule;  // bytes to a cell
        std::vector<std::unique_ptr<Cell[]>> chunks;
        Cell &at(size_t index);
    };
    // How far a block's accesses are ordered before those of others.
    struct Published {
        // What came before a __threadfence that an atomic followed, and when that atomic was.
        std::shared_ptr<const View> view;
        uint32_t released = 0;
        uint32_t acquired = 0;  // when its last atomic was
    };
    struct Entry {
        uint32_t site;
        int64_t offset;
    };
    struct Plain {  // the hash of a key that needs none: libc++ would take longer than the search
        template <class Key>
        size_t operator()(Key key) const {
            return (size_t)key;
        }
    };
    struct Open {  // a warp request whose lanes are still coming in
        uint64_t lanes = 0;
        int64_t offsets[64];
    };
    struct Doubtful {  // a write, and what stood there before it
        Problem problem;
        const char *at = nullptr;
        int bytes = 0;
        char before[16];
    };
    struct PeerAccess {
        Time time = 0;
        const void *pc = nullptr;
        uint32_t site = 0;  // of an access to the memory of another rank
    };
    // Who accesses memory: a thread, or a unit that was started by the running thread.
    struct Actor {
        int agent;
        Time time;
        bool async_proxy;  // TMA or wgmma
        bool leaves_stamp = true;
    };

    uint32_t find_site(const void *pc, const char *shared_name, int argument,
                       emulator::Access access, int bytes);
    Shadow &shadow_of(const char *begin, int64_t size, int granule);
    void access_shared(Worker &worker, const Actor &actor, const SharedPlace &place, int bytes,
                       emulator::Access access, const void *pc);
    void publish(Worker &worker, int fiber);
    void check_race(Worker &worker, const Actor &actor, Shadow &shadow, uint32_t site,
                    const Where &where, int64_t offset, const char *at);
    const char *unordered(const Worker &worker, const Stamp &before, const Actor &actor,
                          bool shared) const;
    void report_race(Worker &worker, const Actor &actor, uint32_t site, const Stamp &before,
                     const Where &where, const char *cause);
    Problem race(Worker &worker, const Actor &actor, uint32_t site, const Stamp &before,
                 const Where &where, const char *cause) const;
    void doubt(const Problem &problem, const char *at, int bytes);
    void settle_doubt();
    void check_rank(Worker &worker, int owner, uint32_t site);
    void report_rank(Worker &worker, const Fiber &fiber, int owner, uint32_t site, bool ended);
    void count(SiteCount &site, const Open &request) const;
    bool first_time(ProblemKind kind, const void *pc, const void *other, bool blocks = false);
    int agent(AgentKind kind, int fiber, int count = 1);

    Launch &launch_;
    std::vector<Agent> agents_;  // first the threads of the cluster
    std::unordered_map<uint64_t, int> agent_index_;
    std::unordered_map<uint64_t, uint32_t, Plain> site_index_;
    std::unordered_map<const char *, Shadow, Plain> shadows_;  // by the start of the memory
    std::vector<Published> published_;                  // by block
    std::vector<std::shared_ptr<const View>> fences_;   // by fiber: its last __threadfence
    std::vector<std::vector<PeerAccess>> peer_accesses_;  // by block of the cluster, by agent
    std::vector<std::vector<PeerAccess>> rank_accesses_;  // by rank, by agent: of other ranks to it
    std::unordered_map<const unsigned *, int> senders_;   // ranks, by the slot of their words
    std::vector<std::vector<Entry>> logs_;  // by fiber: accesses not yet counted
    std::vector<std::vector<Open>> open_;   // by site, used in finish_warp
    std::vector<uint32_t> seen_;            // by site, used in finish_warp
    std::unordered_set<uint64_t> reported_;
    Doubtful doubtful_;
    uint32_t serial_ = 0, cluster_start_ = 0;
};
