// What a launch hands back to Python. structures.py reads the declarations.
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
    uint32_t member = 0, warp = 0, lane = 0;  // member: the block, of its cluster
    uint32_t serial = 0;  // of an access to memory, or the next one; 0: outside of a recording
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

// What a thread does at a barrier or with a unit, or ("ends") what a barrier does; in their order.
struct Event {
    Place place;
    // "waits" for the end of a phase, and then "waited"; "arrives"; "meets": both in one; "loads":
    // starts a copy that a barrier counts; "ends": a phase; "starts" something of a unit, in a group;
    // "joins": has waited for the groups up to this one; "returns"
    const char *kind;
    const char *of;         // the name of the barrier, or the unit
    int32_t phase;          // or group
    int32_t came, threads;  // to this phase so far, and all that it waits for
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
    const char *printed;
    int64_t printed_bytes;
    const void *library_base;
};
