// Asynchronous copies: cp.async, which a thread groups and waits for, and TMA's copies of tiles.
//
// Copies to shared memory are made as late as a program may have to wait for them, or, in the other
// timing (`early`), at once. A store by TMA reads shared memory as late as possible in both.
#include <algorithm>
#include <cstring>

#include "scheduler.h"

using namespace emulator;

static constexpr int ROW = 128;    // bytes of a row of a tile
static constexpr int PIECE = 16;   // bytes that the swizzle keeps together

static void copy(const AsyncCopy &copy) {
    std::memcpy(copy.to, copy.from, copy.given);
    std::memset(copy.to + copy.given, 0, copy.bytes - copy.given);
}

// The 128-byte swizzle exchanges the pieces of 8 rows: bits 4 to 6 of an address ^ bits 7 to 9.
static char *swizzle(char *address) {
    return (char *)((uintptr_t)address ^ ((uintptr_t)address >> 7 & 7) << 4);
}

static void add(char *to, const char *from, int bytes) {
    for (int i = 0; i < bytes; i += 4) {  // as one step: other blocks may add to the same place
        float value, old;
        std::memcpy(&value, from + i, 4);
        uint32_t *sum = (uint32_t *)(to + i), before = *sum, after;
        do {
            std::memcpy(&old, &before, 4);
            old += value;
            std::memcpy(&after, &old, 4);
        } while (!__atomic_compare_exchange_n(sum, &before, after, false, __ATOMIC_RELAXED,
                                              __ATOMIC_RELAXED));
    }
}

// Rounds a row of float32 numbers to TF32, to nearest even, as an H200 was seen to do.
static void round_to_tf32(char (&row)[ROW]) {
    uint32_t words[ROW / 4];
    std::memcpy(words, row, ROW);
    for (uint32_t &bits : words) {
        if ((bits & 0x7fffffff) > 0x7f800000) bits = 0x7fffffff;  // NaN
        else bits += 0xfff + (bits >> 13 & 1);  // may carry into the exponent: right
        bits &= ~0x1fffu;
    }
    std::memcpy(row, words, ROW);
}

// One that the running thread groups and waits for.
void Worker::start(const AsyncCopy &task) {
    auto [to, from, bytes, given, pc, by] = task;
    if (((uintptr_t)to | (given ? (uintptr_t)from : 0)) % bytes)
        refuse(MISALIGNED, pc,
               "%s copies %d bytes from %p to %p, which are not both multiples of %d",
               by == MEMCPY ? "memcpy_async" : "cp.async", bytes, (const void *)from, (void *)to,
               bytes);
    note("starts", "copy", -1, fiber().copies.committed + 1, pc);
    if (MemoryModel *memory = launch->memory.get()) {
        if (given) record(from, given, ACCESS_READ, pc);
        memory->copy(*this, to, bytes, by, pc);
    }
    if (launch->options->early) copy(task);
    fiber().copies.start(task);
}

// Elements outside of the array are 0 when they are loaded, and are not stored.
void Worker::carry_out(const TileCopy &copy) {
    const TileMap &map = copy.map;
    int64_t first = std::clamp<int64_t>(-(int64_t)copy.x, 0, map.box_columns);
    int64_t last = std::clamp<int64_t>((int64_t)map.columns - copy.x, first, map.box_columns);
    int bytes = (int)(last - first) * map.element_bytes;
    for (int r = 0; r < map.box_rows; r++) {
        int64_t row = (int64_t)copy.y + r;
        bool inside = row >= 0 && row < (int64_t)map.rows && bytes;
        if (!inside && copy.way != Way::load) continue;
        char buffer[ROW] = {}, *part = buffer + first * map.element_bytes;
        int64_t offset = row * (int64_t)map.row_bytes + (copy.x + first) * map.element_bytes;
        char *array = map.begin + offset;
        if (copy.way == Way::load && inside) std::memcpy(part, array, bytes);
        if (copy.way == Way::load && map.tf32) round_to_tf32(buffer);
        for (int p = 0; p < ROW; p += PIECE) {
            char *piece = swizzle(copy.tile + r * ROW + p);
            if (copy.way == Way::load) std::memcpy(piece, buffer + p, PIECE);
            else std::memcpy(buffer + p, piece, PIECE);
        }
        if (copy.way == Way::store) std::memcpy(array, part, bytes);
        if (copy.way == Way::add) add(array, part, bytes);
    }
    if (copy.way != Way::load) return;
    copy.barrier->missing_bytes -= map.box_rows * ROW;
    complete(*copy.barrier);
}

// A tile that TMA is to copy.
SharedPlace Worker::check_tile(const void *tile, int bytes, Access access, const void *pc) {
    SharedPlace place = find_shared(tile);
    if (place.member < 0) refuse(OUT_OF_BOUNDS, pc, "TMA copies a tile outside of shared memory");
    const char *name = place.array ? place.array->name : "shared memory";
    if (place.offset % ROW)
        refuse(MISALIGNED, pc,
               "TMA copies a tile in %s at shared address %zu, which is not a multiple of 128",
               name, place.offset);
    if (!place.array || place.offset + bytes > place.array->offset + place.array->bytes)
        out_of_bounds({name, -1, bytes}, access, pc);
    return place;
}

void emulator::emulator_async_copy(void *to, const void *from, int bytes, int given) {
    this_worker->start({(char *)to, (const char *)from, bytes, given, CALLER, CP_ASYNC});
}

void emulator::emulator_async_commit() { this_worker->fiber().copies.commit(); }

void emulator::emulator_async_wait(int pending_groups) {
    Worker &worker = *this_worker;
    bool early = worker.launch->options->early;
    Time groups = worker.fiber().copies.wait(pending_groups, [early](const AsyncCopy &task) {
        if (!early) copy(task);
    });
    worker.note("joins", "copy", -1, groups, CALLER);
    if (worker.launch->memory) worker.launch->memory->complete(worker, {CP_ASYNC, MEMCPY}, groups);
}

void emulator::emulator_tile_load(void *tile, const void *map, void *barrier, int x, int y,
                                  int blocks) {
    Worker &worker = *this_worker;
    const TileMap &tiles = *(const TileMap *)map;
    int bytes = tiles.box_rows * ROW, own = worker.fiber().member;
    SharedPlace place = worker.check_tile(tile, bytes, ACCESS_WRITE, CALLER);
    if (!blocks) blocks = 1 << own;
    if (blocks < 0 || blocks >> worker.members.size())
        worker.refuse(CLUSTER, CALLER, "copies to blocks 0x%x of a cluster of %zu blocks", blocks,
                      worker.members.size());
    for (int rank = 0; blocks >> rank; rank++) {
        if (!(blocks >> rank & 1)) continue;
        Mbarrier &counts = worker.find_mbarrier(barrier, rank, CALLER);
        worker.note("loads", counts, counts.phases, CALLER);
        char *there = worker.members[rank]->shared.begin + place.offset;
        TileCopy copy{there, tiles, x, y, Way::load, &counts, worker.running(),
                      CALLER};
        if (MemoryModel *memory = worker.launch->memory.get())
            memory->copy_counted(worker, there, bytes, TMA_LOAD, counts, CALLER);
        if (worker.launch->options->early) worker.carry_out(copy);
        else worker.loads.push_back(copy);
    }
}

void emulator::emulator_tile_store(const void *map, const void *tile, int x, int y, bool add) {
    Worker &worker = *this_worker;
    const TileMap &tiles = *(const TileMap *)map;
    int bytes = tiles.box_rows * ROW;
    worker.check_tile(tile, bytes, ACCESS_READ, CALLER);
    worker.note("starts", "TMA store", -1, worker.fiber().stores.committed + 1, CALLER);
    if (MemoryModel *memory = worker.launch->memory.get())
        memory->store_tile(worker, (const char *)tile, bytes, CALLER);
    worker.fiber().stores.start({(char *)tile, tiles, x, y, add ? Way::add : Way::store, nullptr,
                                 worker.running(), CALLER});
}

void emulator::emulator_tile_store_commit() { this_worker->fiber().stores.commit(); }

void emulator::emulator_tile_store_wait(int pending_groups) {
    Worker &worker = *this_worker;
    Time groups = worker.fiber().stores.wait(
        pending_groups, [&](const TileCopy &store) { worker.carry_out(store); });
    worker.note("joins", "TMA store", -1, groups, CALLER);
    if (worker.launch->memory) worker.launch->memory->complete(worker, {TMA_STORE}, groups);
}

void emulator::emulator_proxy_fence() {
    if (MemoryModel *memory = this_worker->launch->memory.get())
        memory->clocks.fence(this_worker->running());
}
