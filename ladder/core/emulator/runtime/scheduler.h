// The inside of the runtime: launches, workers and fibers.
#pragma once
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "emulator/thread.h"
#include "fiber.h"
#include "memory.h"
#include "results.h"

// Where the kernel has called a function of the runtime. WebAssembly has no return addresses: there
// the kernel itself says where it is before each call. Nor has it signals that tell of the time.
#ifdef __wasm__
extern "C" uintptr_t emulator_pc;
extern "C" bool emulator_expired();
#define CALLER ((const void *)emulator_pc)
#else
#define CALLER __builtin_return_address(0)
#endif

enum class State : uint8_t { fresh, ready, at_warp, at_barrier, polling, done };

// Tasks that a thread has started and not yet waited for, in groups, the oldest first.
template <class Task>
struct Pending {
    std::deque<Task> tasks;
    std::deque<size_t> groups;  // how many tasks each has
    size_t ungrouped = 0;       // how many no group has yet
    Time committed = 0;         // how many groups there were so far

    void start(Task task) {
        tasks.push_back(std::move(task));
        ungrouped++;
    }
    void commit() {
        groups.push_back(ungrouped);
        ungrouped = 0;
        committed++;
    }
    // Does all tasks but those of the newest `pending` groups, each once it is out of `tasks`.
    // Returns how many groups are complete.
    template <class Do>
    Time wait(int pending, Do carry_out) {
        for (; (int)groups.size() > pending; groups.pop_front()) {
            for (size_t i = 0; i < groups.front(); i++) {
                Task task = std::move(tasks.front());
                tasks.pop_front();
                carry_out(task);
            }
        }
        return committed - (Time)groups.size();
    }
    void clear() {
        if (!committed && !ungrouped) return;  // as in most kernels
        tasks.clear();
        groups.clear();
        ungrouped = 0;
        committed = 0;
    }
};

struct AsyncCopy {
    char *to;
    const char *from;
    int bytes, given;
    const void *pc;
    AgentKind by;  // CP_ASYNC or MEMCPY
};

// A thread's part of a wgmma.
struct Product {
    float *d;
    int count;
    emulator::Wgmma wgmma;
    float a[2][16];            // this thread's two rows of A, where A is in registers
    std::vector<float> value;  // of d, if no older product with the same d has it
    const void *pc;
};

// What a TensorMap holds on the emulated device (emulated.py makes it).
struct TileMap {
    char *begin;
    uint64_t columns, rows, row_bytes;  // of the array
    int32_t box_columns, box_rows, element_bytes;
    int32_t tf32;  // whether float32 is rounded to TF32 when it is loaded
};

// A barrier in shared memory that counts threads and bytes.
struct Mbarrier {
    emulator::BarrierKind kind;
    int member;     // whose block's
    size_t offset;  // in its shared memory
    int count;
    int missing_threads, missing_bytes;  // in this phase
    unsigned phases;                     // completed so far
    const void *pc;                      // of its mbarrier_init
    int maker;                           // the fiber that did it,
    Time made;                           // and when
    View arrived, completed;             // in counting mode: what arrivals, and phases, order
    int agent;                           // the copies that it counts, or -1
    int users;                           // threads that have not left its pipeline
    bool ended;                          // all of them have
    bool is_in(int parity) const { return (int)(phases & 1) == parity; }
};

enum class Way { load, store, add };

struct TileCopy {
    char *tile;
    TileMap map;  // not a pointer: it may lie on the stack of a thread that has returned by then
    int x, y;
    Way way;
    Mbarrier *barrier;  // of a load
    int fiber;          // that started it
    const void *pc;
};

// One thread's part of a memcpy_async that a barrier counts: pieces that lie `stride` bytes apart.
struct CountedCopy {
    char *to;
    const char *from;
    size_t bytes, stride;  // from the first piece to the end of the copy
    int piece;
    Mbarrier *barrier;
    int fiber;  // that started it
    const void *pc;
};

struct NamedBarrier {
    int arrived = 0, threads = 0, generation = 0;
    View arriving, opened;  // in counting mode
};

struct Fiber : emulator::Thread {
    int member;  // its block's place in the cluster
    State state;
    void *stack_pointer;
    const void *pc;  // of the barrier or warp operation at which it waits
    int predicate;   // of a barrier
    emulator::WarpOperation operation;
    int source;
    uint64_t mask, value, result;
    Pending<AsyncCopy> copies;
    Pending<Product> products;
    Pending<TileCopy> stores;
    bool fenced;  // whether it has called wgmma_fence
    // By accumulators of complete products: what was in them then, or at a wgmma_fence since.
    std::unordered_map<const float *, std::vector<float>> accumulators;
    const Mbarrier *waits_at;  // while it polls
    int parity;                // of the phase that it waits for; -1: it waits with a token,
    unsigned phase;            // which is of this phase
    bool must_wait() const {
        return parity < 0 ? waits_at->phases == phase : waits_at->is_in(parity);
    }
    const NamedBarrier *waits_with;  // likewise
    const unsigned *waits_for;       // a flag, likewise
    unsigned until;                  // its value
    int waits;  // at an mbarrier, since all lanes of its warp last met
    const void *last_wait;  // the last of these
    bool waited;            // for the end of the kernel before
};

// One block of a cluster. A kernel without __cluster_dims__ has clusters of one.
struct Member {
    emulator::Block block;
    SharedMemory shared;
    NamedBarrier named_barriers[16];
    std::deque<Mbarrier> mbarriers;
    unsigned number = 0;     // blockIdx as one number, x fastest
    int running = 0;         // threads that have not returned
    unsigned meetings = 0;   // of all of them, so far
    int barrier_result = 0;  // of those that came last: how many predicates held
};

struct Warp {
    int first, count;  // its fibers
};

// What Python asks for; structures.py reads the declaration.
struct Options {
    uint32_t grid[3], block[3], cluster;  // cluster: blocks that run together, along x
    uint32_t ranks;                       // along y, all in one cluster; 0: there are none
    uint64_t shared_bytes, shared_limit;  // dynamic; and the most that a block may have
    int32_t warp, workers, seed, early, counting, trace, buffer_count;
    int32_t prefetches;  // whether the kernel starts before the end of the one before it
    int32_t record;      // whether Result has events, in counting mode
    int32_t last;        // whether only the last cluster runs
    double time_limit;  // seconds
};

struct Launch {
    void (*kernel)(void **);
    void **arguments;
    const Options *options;
    std::vector<Buffer> buffers;
    std::vector<unsigned> cluster_order;
    std::atomic<unsigned> next_cluster{0};
    std::atomic<bool> stopped{false};
    std::atomic<bool> expired{false};
    const char *code_begin, *code_end;  // the kernel's shared library in memory

    std::mutex mutex;  // guards what follows
    std::vector<Problem> problems;
    std::string printed;
    std::unique_ptr<MemoryModel> memory;  // in counting mode; then there is one worker
    bool records = false;                 // until a cluster has ended that did something wrong
    std::vector<Event> first_events, events;  // of the first cluster, and of the last one
    std::set<std::string> names;              // of their barriers and units
    Result result{};

    void add(const Problem &problem);
};

// A small generator: orders need no quality, only speed and a seed.
struct Random {
    uint64_t state;
    unsigned below(unsigned n) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        return (unsigned)((state >> 32) * n >> 32);
    }
    template <class T>
    void shuffle(std::vector<T> &items) {
        for (size_t i = items.size(); i > 1; i--) std::swap(items[i - 1], items[below(i)]);
    }
};

// One OS thread's worth of machine: it runs one cluster at a time, all of its blocks together.
class Worker {
  public:
    void run(Launch &launch);

    // Called from fibers.
    void yield(State state, const void *pc);
    [[noreturn]] void abandon();  // gives up the launch; this fiber never goes on
    void fail(ProblemKind kind, const void *pc, const char *format, ...)
        __attribute__((format(printf, 4, 5)));
    [[noreturn]] void refuse(ProblemKind kind, const void *pc, const char *format, ...)
        __attribute__((format(printf, 4, 5)));
    [[noreturn]] void out_of_bounds(const Where &where, emulator::Access access, const void *pc);
    void report(ProblemKind kind, const Where &where, emulator::Access access, const void *pc,
                bool fatal = false);
    void report(ProblemKind kind, const Place &place, const Place &other, const char *text = "");
    void left_too_early(int member, const Fiber &other, const void *pc);
    uint64_t at_warp(emulator::WarpOperation operation, uint64_t mask, uint64_t value, int source,
                     const void *pc);
    void record(const void *address, int bytes, emulator::Access access, const void *pc);
    // What the running thread does, where that is recorded (Event).
    void note(const char *kind, const Mbarrier &at, unsigned phase, const void *pc) {
        if (launch->records)
            note_as(title_of(at), at.member, kind, phase, pc, at.count - at.missing_threads,
                    at.count);
    }
    void note(const char *kind, const char *of, int member, unsigned phase, const void *pc,
              int came = 0, int threads = 0) {
        if (launch->records) note_as(of, member, kind, phase, pc, came, threads);
    }
    void check_converged(const void *pc);
    void check_accumulators(const char *at, int bytes, const void *pc);
    Mbarrier &find_mbarrier(const void *address, int rank, const void *pc,
                            emulator::BarrierKind kind = emulator::MBARRIER);
    Mbarrier &init(void *address, int64_t count, emulator::BarrierKind kind, const void *pc);
    void arrive(Mbarrier &barrier, int64_t threads, int bytes, const void *pc);
    void wait(Mbarrier &barrier, int parity, unsigned phase, const void *pc);
    SharedPlace check_tile(const void *tile, int bytes, emulator::Access access, const void *pc);
    char *shared_array(const void *key, const char *name, size_t bytes, size_t alignment,
                       const void *pc);

    // Called from both.
    void carry_out(const TileCopy &copy);
    void start(const AsyncCopy &task);
    void start(const CountedCopy &copy);
    void carry_out(const CountedCopy &copy);
    void complete(Mbarrier &barrier);
    Problem problem(ProblemKind kind, const void *pc);
    Place place(const Fiber &fiber, const void *pc) const;
    std::string title_of(const Mbarrier &barrier) const;
    Fiber &fiber() { return *static_cast<Fiber *>(emulator::current.thread); }
    Member &member() { return *members[fiber().member]; }
    int rank_of(const Fiber &fiber) const { return (int)members[fiber.member]->block.index.y; }
    int number_of(const Fiber &fiber) const { return (int)(&fiber - fibers.data()); }
    int running() { return number_of(fiber()); }
    int warp_of(const Fiber &fiber) const { return fiber.member * warps_of_block + fiber.warp; }
    uint64_t existing_lanes(int warp) const;
    SharedPlace find_shared(const void *address) const;

    Launch *launch = nullptr;
    std::vector<std::unique_ptr<Member>> members;
    int warp_size = 0, warps_of_block = 0;
    std::vector<Warp> warps;    // of all members, one after the other
    std::vector<Fiber> fibers;  // likewise
    Stacks stacks;
    std::vector<uint64_t> gathered;  // by fiber: its value in the last warp operation
    SharedLayout layout;
    std::vector<TileCopy> loads;          // TMA loads under way
    std::vector<CountedCopy> counted;     // copies of memcpy_async likewise
    NamedBarrier cluster_barrier;
    std::vector<int> running_blocks;  // by rank

  private:
    void note_as(std::string of, int member, const char *kind, unsigned phase, const void *pc,
                 int came, int threads);
    void prepare();
    void run_cluster(unsigned id);
    void start_cluster(unsigned id);
    bool run_warp(int warp);
    void run_fiber(Fiber &fiber);
    bool complete_warp_operations(int warp);
    bool complete_warp_operation(int warp, Fiber &first);
    bool release_coalesced(int warp, const Fiber &first);
    bool complete_barrier(int member);
    bool complete_load();
    bool complete_counted();
    void finish_thread();
    void report_deadlock();
    std::string describe_wait(const Fiber &fiber) const;
    std::string explain_mask(const Fiber &fiber) const;
    static void entry();

    void *stack_pointer_ = nullptr;  // of the scheduler, while a fiber runs
    std::vector<int> warp_order_, lane_order_;
    Random random_;
    int idle_rounds_ = 0;
};

extern thread_local Worker *this_worker;
