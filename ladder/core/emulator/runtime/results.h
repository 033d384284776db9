// What a launch hands back to Python. report.py declares the same structures: keep them alike.
#pragma once
#include <cstdint>

enum ProblemKind : int32_t {
    OUT_OF_BOUNDS,
    RACE,
    DIVERGENT_BARRIER,
    DEADLOCK,
    UNINITIALISED,
    CRASH,
    ASSERTION,
    TIME_LIMIT,
    MISALIGNED,
    BARRIER_MISUSE,  // used in a way that its counts do not allow
    IN_FLIGHT,       // something asynchronous that was not waited for
    SHARED_LIMIT,    // more shared memory than there is
    CLUSTER,         // a block left its cluster too early
    RANKS,           // memory of a rank, used before its kernel began or after it ended
    TOO_EARLY,       // used, or left, before the end of the kernel before
};

// Who accesses memory: a thread, or a unit that a thread has started.
// MEMCPY: copies of memcpy_async that a thread groups and waits for, as with cp.async. COUNTED: those
// that a barrier counts.
enum AgentKind : int32_t { THREAD, CP_ASYNC, TMA_LOAD, TMA_STORE, WGMMA, MEMCPY, COUNTED };

// One access or one wait: who, and at which instruction.
struct Place {
    const void *pc = nullptr;
    uint32_t block[3] = {};
    uint32_t thread[3] = {};
    int32_t access = -1;  // emulator::Access, or -1
    AgentKind agent = THREAD;
    int32_t event = -1;  // of the recording: the last one of this thread before; -1: there is none
};

// A piece of memory: a buffer that was passed as an argument, or an array in shared memory.
struct Where {
    const char *shared_name = nullptr;  // null: global memory
    int32_t argument = -1;              // of the buffer; -1: no buffer at all
    int32_t bytes = 0;                  // of the access
    int64_t offset = 0;                 // from the start of the memory, or an address
};

struct Problem {
    ProblemKind kind;
    int32_t fatal;  // the launch was given up
    Place place, other;
    Where where;
    char text[360];
};

// All warp requests of one instruction to one piece of memory.
struct SiteCount {
    const void *pc;
    const char *shared_name;
    int32_t argument, access, bytes, padding;
    int64_t requests, lanes;
    int64_t sectors, ideal_sectors;        // 32-byte sectors; global memory
    int64_t wavefronts, ideal_wavefronts;  // passes over the 32 banks; shared memory
};

// One warp request in full.
struct Request {
    int32_t site;  // index of its SiteCount
    int32_t warp;
    uint32_t block[3];
    uint32_t padding;
    uint64_t lanes;       // bit i: lane i takes part
    int64_t offsets[64];  // by lane, in bytes from the start of the memory
};

// What a thread does at a barrier, or with a unit.
enum EventKind : int32_t {
    WAITS,    // at an mbarrier, for the end of a phase
    WAITED,   // which has come
    MEETS,    // at a barrier, `phase` of it
    MET,      // all have come
    ARRIVES,  // at an mbarrier
    LOADS,    // starts a copy that an mbarrier counts
    LANDS,    // that copy
    STARTS,   // something of a unit, an AgentKind, in its group `phase`
    JOINS,    // waits until the unit's groups up to `phase` are complete
    RETURNS
};

struct Event {
    const void *pc;
    uint64_t lanes;  // of the warp; bit i: lane i
    int32_t kind, warp, object, phase;
    int32_t value;  // threads that arrive, bytes that are copied; summed over the lanes
    int32_t padding;
};

// What events have as their object.
struct Barrier {
    char name[56];
    int32_t member, threads;  // the place of its block in the cluster; threads that a phase counts
};

struct Result {
    const Problem *problems;
    int64_t problem_count;
    const SiteCount *sites;
    int64_t site_count;
    const Request *requests;
    int64_t request_count;
    const Event *events;
    int64_t event_count;
    const Barrier *barriers;
    int64_t barrier_count;
    const char *printed;
    int64_t printed_bytes;
    const void *library_base;
};
