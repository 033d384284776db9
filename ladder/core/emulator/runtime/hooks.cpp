// The hooks of counting mode. Compiled with -fsanitize=thread, a kernel calls these before every
// load and store that is not provably of its own local variables. The functions have the names that
// ThreadSanitizer gives them (https://github.com/google/sanitizers/wiki); nothing of it is linked.
// The same holds for the one hook of UndefinedBehaviorSanitizer: an index past its array, which is
// the only way to see one past an array in registers.
#include <algorithm>
#include <cstring>
#include <fstream>
#include <string>

#include "scheduler.h"

using namespace emulator;

static void record(const void *address, size_t bytes, Access access, const void *pc) {
    if (this_worker) this_worker->record(address, (int)bytes, access, pc);
}

// An access that the compiler takes to be aligned must be, on a GPU.
static void record_aligned(const void *address, size_t bytes, Access access, const void *pc) {
    if (this_worker && (uintptr_t)address % bytes) {
        SharedPlace place = this_worker->find_shared(address);
        bool declare = place.array && (place.offset - place.array->offset) % bytes == 0;
        std::string remedy;  // where the array itself does not begin at a multiple
        if (declare)
            remedy = ": declare " + std::string(place.array->name) + " with __align__(" +
                     std::to_string(bytes) + ")";
        this_worker->refuse(MISALIGNED, pc,
                            "%s of %zu bytes at an address that is no multiple of %zu%s",
                            access == ACCESS_READ ? "read" : "write", bytes, bytes, remedy.c_str());
    }
    record(address, bytes, access, pc);
}

#ifndef __wasm__  // which gcc does not compile for
// What gcc knows of an index that it has found to be past its array.
struct IndexedArray {
    const char *file;
    uint32_t line, column;  // of the closing bracket
    const struct Type {
        uint16_t kind, info;  // of an integer: the logarithm of its bits, and whether it has a sign
        char name[1];  // such as 'float [8]', with the quotes
    } *array, *index;
};

// Whether an index runs on from row 0 through a whole array, as in tile[0][i]: nothing is wrong
// with it unless it leaves the array, which the model of memory notices for shared memory.
static bool runs_on(const IndexedArray &at) {
    std::ifstream file(at.file);
    std::string text;
    for (uint32_t line = 0; line < at.line; line++)
        if (!std::getline(file, text)) return true;  // the text is not there to be looked at
    size_t i = std::min<size_t>(at.column ? at.column - 1 : 0, text.size());
    for (int depth = 1; depth > 0 && i > 0;) {
        i--;
        depth += (text[i] == ']') - (text[i] == '[');
    }
    while (i > 0 && text[i - 1] == ' ') i--;
    return i >= 3 && text.compare(i - 3, 3, "[0]") == 0;
}

extern "C" EMULATOR_EXPORT void __ubsan_handle_out_of_bounds(const IndexedArray *at,
                                                             uintptr_t index) {
    if (!this_worker || runs_on(*at)) return;
    int unused = 64 - (1 << (at->index->info >> 1));
    long long value = at->index->info & 1 ? (long long)(index << unused) >> unused : (long long)index;
    this_worker->refuse(OUT_OF_BOUNDS, CALLER, "index %lld is outside of an array %s", value,
                        at->array->name);
}
#endif

extern "C" {
#define HOOK(NAME, RECORD, BYTES, ACCESS)                                                       \
    EMULATOR_EXPORT void NAME(void *address) { RECORD(address, BYTES, ACCESS, CALLER); }
#define HOOKS(BYTES)                                                                            \
    HOOK(__tsan_read##BYTES, record_aligned, BYTES, ACCESS_READ)                                \
    HOOK(__tsan_write##BYTES, record_aligned, BYTES, ACCESS_WRITE)                              \
    HOOK(__tsan_unaligned_read##BYTES, record, BYTES, ACCESS_READ)                              \
    HOOK(__tsan_unaligned_write##BYTES, record, BYTES, ACCESS_WRITE)                            \
    HOOK(__tsan_volatile_read##BYTES, record_aligned, BYTES, ACCESS_READ)                       \
    HOOK(__tsan_volatile_write##BYTES, record_aligned, BYTES, ACCESS_WRITE)                     \
    HOOK(__tsan_unaligned_volatile_read##BYTES, record, BYTES, ACCESS_READ)                     \
    HOOK(__tsan_unaligned_volatile_write##BYTES, record, BYTES, ACCESS_WRITE)                   \
    /* x += 1 on memory: some versions of clang announce the load and the store in one call. */ \
    EMULATOR_EXPORT void __tsan_read_write##BYTES(void *address) {                              \
        record(address, BYTES, ACCESS_READ, CALLER);                                            \
        record(address, BYTES, ACCESS_WRITE, CALLER);                                           \
    }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

EMULATOR_EXPORT void __tsan_read_range(void *address, size_t bytes) {
    record(address, bytes, ACCESS_READ, CALLER);
}
EMULATOR_EXPORT void __tsan_write_range(void *address, size_t bytes) {
    record(address, bytes, ACCESS_WRITE, CALLER);
}
// clang leaves copies of structures to memcpy; launch.h gives each kernel one that comes here.
EMULATOR_EXPORT void *emulator_copy(void *to, const void *from, size_t bytes, const void *pc) {
    record(from, bytes, ACCESS_READ, pc);
    record(to, bytes, ACCESS_WRITE, pc);
    return std::memmove(to, from, bytes);
}
EMULATOR_EXPORT void *__tsan_memcpy(void *to, const void *from, size_t bytes) {
    return emulator_copy(to, from, bytes, CALLER);
}
EMULATOR_EXPORT void *__tsan_memmove(void *to, const void *from, size_t bytes) {
    return emulator_copy(to, from, bytes, CALLER);
}
EMULATOR_EXPORT void *__tsan_memset(void *to, int value, size_t bytes) {
    record(to, bytes, ACCESS_WRITE, CALLER);
    return std::memset(to, value, bytes);
}
EMULATOR_EXPORT void __tsan_init() {}
EMULATOR_EXPORT void __tsan_func_entry(void *) {}
EMULATOR_EXPORT void __tsan_func_exit() {}
EMULATOR_EXPORT void __tsan_vptr_update(void **, void *) {}
EMULATOR_EXPORT void __tsan_vptr_read(void **) {}
}  // extern "C"
