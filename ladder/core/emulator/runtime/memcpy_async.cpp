// cuda::barrier, cuda::pipeline, and the copies of memcpy_async, of CUDA's C++ library.
//
// A barrier is an mbarrier (mbarrier.cpp) whose threads wait with a token. A copy that it counts adds
// its bytes to the phase, and is made when every thread of the block waits: as late as it may be.
// Where a thread groups its copies itself, they are those of cp.async (async.cpp).
#include <algorithm>
#include <cstring>

#include "scheduler.h"

using namespace emulator;

static constexpr size_t MOST_PIECE = 16;  // bytes that a thread copies at once

void Worker::start(const CountedCopy &copy) {
    note("loads", *copy.barrier, copy.barrier->phases, copy.pc);
    for (size_t at = 0; at < copy.bytes; at += copy.stride) {
        // A wild address shows here, in the thread that has it, and not when the copy is made.
        (void)*(const volatile char *)(copy.from + at);
        copy.barrier->missing_bytes += copy.piece;
        if (!launch->memory) continue;
        record(copy.from + at, copy.piece, ACCESS_READ, copy.pc);
        launch->memory->copy_counted(*this, copy.to + at, copy.piece, COUNTED, *copy.barrier,
                                     copy.pc);
    }
    if (launch->options->early) carry_out(copy);
    else counted.push_back(copy);
}

void Worker::carry_out(const CountedCopy &copy) {
    for (size_t at = 0; at < copy.bytes; at += copy.stride) {
        std::memcpy(copy.to + at, copy.from + at, copy.piece);
        copy.barrier->missing_bytes -= copy.piece;
    }
    complete(*copy.barrier);
}

// Makes the late copies that one barrier counts. Returns whether there were any.
bool Worker::complete_counted() {
    if (counted.empty()) return false;
    size_t next = launch->options->seed ? random_.below((unsigned)counted.size()) : 0;
    const Mbarrier *barrier = counted[next].barrier;
    auto others = std::stable_partition(
        counted.begin(), counted.end(),
        [barrier](const CountedCopy &copy) { return copy.barrier != barrier; });
    std::vector<CountedCopy> now(others, counted.end());
    counted.erase(others, counted.end());
    for (const CountedCopy &copy : now) carry_out(copy);
    idle_rounds_ = 0;
    return true;
}

void emulator::emulator_barrier_init(void *barrier, long long count, BarrierKind kind, int users) {
    this_worker->init(barrier, count, kind, CALLER).users = users;
}

uint64_t emulator::emulator_barrier_arrive(void *address, BarrierKind kind, long long threads,
                                           bool drop) {
    Worker &worker = *this_worker;
    Mbarrier &barrier = worker.find_mbarrier(address, -1, CALLER, kind);
    uint64_t token = (uint64_t)barrier.offset << 32 | barrier.phases;
    barrier.count -= drop;
    worker.arrive(barrier, threads, 0, CALLER);
    return token;
}

void emulator::emulator_barrier_wait(void *address, uint64_t token) {
    Worker &worker = *this_worker;
    Mbarrier &barrier = worker.find_mbarrier(address, -1, CALLER, BARRIER);
    std::string title = worker.title_of(barrier);
    unsigned phase = (unsigned)token;
    if (token >> 32 != barrier.offset)
        worker.refuse(BARRIER_MISUSE, CALLER,
                      "waits at %s with a token that is not of this barrier: it is none that its "
                      "arrive() has returned",
                      title.c_str());
    worker.wait(barrier, -1, phase, CALLER);
    if (barrier.phases - phase > 1)
        worker.refuse(BARRIER_MISUSE, CALLER,
                      "waits at %s with a token of phase %u, and phase %u has ended, too: a token "
                      "is good until then; do more threads arrive than the %d that init names?",
                      title.c_str(), phase, barrier.phases - 1, barrier.count);
}

void emulator::emulator_barrier_wait_parity(void *address, BarrierKind kind, int parity) {
    Worker &worker = *this_worker;
    Mbarrier &barrier = worker.find_mbarrier(address, -1, CALLER, kind);
    if (parity != 0 && parity != 1)
        worker.refuse(BARRIER_MISUSE, CALLER, "waits at %s for parity %d, which is not 0 or 1",
                      worker.title_of(barrier).c_str(), parity);
    worker.wait(barrier, parity, 0, CALLER);
}

void emulator::emulator_pipeline_quit(void *stages, int count) {
    Worker &worker = *this_worker;
    for (int i = 0; i < 2 * count; i++) {
        Mbarrier &barrier = worker.find_mbarrier((uint64_t *)stages + i, -1, CALLER, STAGE_FILLED);
        barrier.ended = --barrier.users == 0;
    }
}

unsigned emulator::emulator_count(unsigned *number, int more) { return *number += more; }

void emulator::emulator_memcpy_async(void *address, BarrierKind kind, void *to, const void *from,
                                     size_t bytes, size_t alignment, unsigned rank,
                                     unsigned threads) {
    Worker &worker = *this_worker;
    if (((uintptr_t)to | (uintptr_t)from | bytes) % alignment)
        worker.refuse(MISALIGNED, CALLER,
                      "memcpy_async copies %zu bytes from %p to %p, which are not all multiples of "
                      "%zu",
                      bytes, from, to, alignment);
    int piece = (int)std::min(alignment, MOST_PIECE);
    size_t first = (size_t)rank * piece, stride = (size_t)threads * piece;
    if (first >= bytes) return;
    CountedCopy copy{(char *)to + first, (const char *)from + first, bytes - first, stride, piece,
                     nullptr, worker.running(), CALLER};
    if (worker.find_shared(to).member < 0) {  // no copy to shared memory is asynchronous
        for (size_t at = 0; at < copy.bytes; at += stride) {
            worker.record(copy.from + at, piece, ACCESS_READ, CALLER);
            worker.record(copy.to + at, piece, ACCESS_WRITE, CALLER);
            std::memcpy(copy.to + at, copy.from + at, piece);
        }
    } else if (worker.find_shared((char *)to + bytes - 1).member < 0) {
        worker.refuse(OUT_OF_BOUNDS, CALLER, "memcpy_async copies past the end of shared memory");
    } else if (address) {
        copy.barrier = &worker.find_mbarrier(address, -1, CALLER, kind);
        worker.start(copy);
    } else {
        for (size_t at = 0; at < copy.bytes; at += stride)
            worker.start({copy.to + at, copy.from + at, piece, piece, CALLER, MEMCPY});
    }
}

void emulator::emulator_memcpy_piece(void *to, const void *from, size_t bytes, size_t given) {
    Worker &worker = *this_worker;
    if ((bytes != 4 && bytes != 8 && bytes != 16) || given > bytes)
        worker.refuse(MISALIGNED, CALLER,
                      "__pipeline_memcpy_async copies %zu bytes; 4, 8 and 16 are possible", bytes);
    worker.start({(char *)to, (const char *)from, (int)bytes, (int)given, CALLER, MEMCPY});
}
