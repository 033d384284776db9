// The CPU twins of ladder/include/hopper.cuh.
//
// TMA copies are made as late as possible: when every thread waits. So are products and TMA stores:
// when the thread waits for them.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "emulator/atomics.h"
#include "emulator/thread.h"

namespace emulator {

// What a TensorMap holds on the emulated device (kernel.py's tensor_map makes it).
struct Map {
    char *begin;
    uint64_t columns, rows, row_bytes;  // of the array
    int32_t box_columns, box_rows, element_bytes;
};
static_assert(sizeof(Map) <= sizeof(TensorMap), "");

struct Barrier {  // in the 8 bytes of an Mbarrier
    int32_t missing_bytes;
    uint16_t missing_threads;
    uint16_t count : 15, phase : 1;
};
static_assert(sizeof(Barrier) == sizeof(Mbarrier), "");

// The 16-byte pieces of 8 rows of 128 bytes are exchanged: bits 4 to 6 of an address ^ bits 7 to 9.
__forceinline__ char *swizzle(const void *pointer) {
    uintptr_t address = (uintptr_t)pointer;
    return (char *)(address ^ (address >> 7 & 7) << 4);
}

EMULATOR_UNCOUNTED inline void complete(Barrier *barrier) {
    if (barrier->missing_threads || barrier->missing_bytes) return;
    barrier->phase ^= 1;
    barrier->missing_threads = barrier->count;
}

EMULATOR_UNCOUNTED inline void arrive(Mbarrier *which, int bytes) {
    Barrier *barrier = (Barrier *)which;
    emulator_release();
    barrier->missing_bytes += bytes;
    barrier->missing_threads--;
    complete(barrier);
}

enum class Way { load, store, add };

struct TileCopy {
    char *tile;
    const Map *map;
    Barrier *barrier;  // of a load
    int x, y;
    Way way;
};

EMULATOR_UNCOUNTED inline void copy_tile(void *payload) {
    const TileCopy &copy = *(const TileCopy *)payload;
    const Map &map = *copy.map;
    int bytes = map.element_bytes;
    for (int r = 0; r < map.box_rows; r++) {
        for (int c = 0; c < map.box_columns; c++) {
            int64_t row = copy.y + r, column = copy.x + c;
            bool inside = row >= 0 && row < (int64_t)map.rows && column >= 0 &&
                          column < (int64_t)map.columns;
            char *in_tile = swizzle(copy.tile + (r * map.box_columns + c) * bytes);
            char *in_array = map.begin + row * (int64_t)map.row_bytes + column * bytes;
            if (copy.way == Way::add) {  // as one step: other blocks may add to the same place
                float *sum = (float *)in_array, value = *(float *)in_tile;
                if (inside) exchange(sum, *sum, [value](float old) { return old + value; });
                continue;
            }
            for (int byte = 0; byte < bytes; byte++) {  // memcpy would be counted, by clang
                if (copy.way == Way::load) in_tile[byte] = inside ? in_array[byte] : 0;
                else if (inside) in_array[byte] = in_tile[byte];
            }
        }
    }
    if (copy.way != Way::load) return;
    int all = map.box_rows * map.box_columns * bytes;
    emulator_written(copy.tile, all);
    copy.barrier->missing_bytes -= all;
    complete(copy.barrier);
}

__forceinline__ void load(void *tile, const TensorMap *map, Mbarrier *barrier, int x, int y) {
    TileCopy copy{(char *)tile, (const Map *)map, (Barrier *)barrier, x, y, Way::load};
    emulator_defer(copy_tile, &copy, sizeof copy);
}

__forceinline__ void store(const TensorMap *map, const void *tile, int x, int y, Way way) {
    TileCopy copy{(char *)tile, (const Map *)map, nullptr, x, y, way};
    emulator_store(copy_tile, &copy, sizeof copy);
}

template <class Format>
__forceinline__ float element(const void *tile, int row, int k) {
    return Format::widen(*(const uint16_t *)swizzle((const char *)tile + row * 128 + k * 2));
}

// An element of a matrix (rows, k); with a `block` it is transposed (MN-major).
template <class Format>
__forceinline__ float operand(const void *tile, int block, int row, int k) {
    if (!block) return element<Format>(tile, row, k);
    return element<Format>((const char *)tile + row / 64 * block, k, row % 64);
}

// The row of the result that element i of a thread's part belongs to, and its column.
__forceinline__ int row_of(int i) {
    int thread = threadIdx.x % 128;
    return thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
}
__forceinline__ int column_of(int i) { return i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2; }

// d += a @ b.T, or overwritten
template <class Format, int N, bool A_MN_MAJOR, int B_BLOCK, bool ADD>
struct FromShared {
    const void *a, *b;

    static EMULATOR_UNCOUNTED void multiply(float *d, const void *payload) {
        const FromShared &from = *(const FromShared *)payload;
        for (int i = 0; i < N / 2; i++) {
            int row = row_of(i), column = column_of(i);
            float sum = ADD ? d[i] : 0;
            for (int k = 0; k < 16; k++)
                sum += operand<Format>(from.a, A_MN_MAJOR, row, k) *
                       operand<Format>(from.b, B_BLOCK, column, k);
            d[i] = sum;
        }
    }
};

// The same with a in registers: this thread's two rows of it.
template <class Format, int N, int B_BLOCK>
struct FromRegisters {
    uint16_t a[2][16];
    const void *b;

    static EMULATOR_UNCOUNTED void multiply(float *d, const void *payload) {
        const FromRegisters &from = *(const FromRegisters *)payload;
        for (int i = 0; i < N / 2; i++) {
            float sum = d[i];
            for (int k = 0; k < 16; k++)
                sum += Format::widen(from.a[i / 2 % 2][k]) *
                       operand<Format>(from.b, B_BLOCK, column_of(i), k);
            d[i] = sum;
        }
    }
};

template <class Format, int N, bool A_MN_MAJOR, int B_BLOCK, bool ADD>
__forceinline__ void wgmma(float (&d)[N / 2], const void *a, const void *b) {
    FromShared<Format, N, A_MN_MAJOR, B_BLOCK, ADD> from{a, b};
    emulator_product(d, N / 2, from.multiply, &from, sizeof from);
}

template <class Format, int N, int B_BLOCK>
EMULATOR_UNCOUNTED __noinline__ void wgmma(float (&d)[N / 2], const unsigned (&a)[4],
                                           const void *b) {
    FromRegisters<Format, N, B_BLOCK> from;
    from.b = b;
    const unsigned(*const *lanes)[4] = show(&a);
    for (int r = 0; r < 2; r++) {
        for (int k = 0; k < 16; k++) {
            unsigned pair = (*lanes[threadIdx.x % 32 / 4 * 4 + k % 8 / 2])[r + k / 8 * 2];
            from.a[r][k] = (uint16_t)(k % 2 ? pair >> 16 : pair);
        }
    }
    emulator_warp(WARP_SYNC, ~0ull, 0, 0);  // all have read the registers of all
    emulator_product(d, N / 2, from.multiply, &from, sizeof from);
}

}  // namespace emulator

EMULATOR_UNCOUNTED inline void mbarrier_init(Mbarrier *barrier, int count) {
    *(emulator::Barrier *)barrier = {0, (uint16_t)count, (uint16_t)count, 0};
    emulator::emulator_written(barrier, sizeof *barrier);
}
__forceinline__ void mbarrier_arrive(Mbarrier *barrier) { emulator::arrive(barrier, 0); }
__forceinline__ void mbarrier_arrive_at(Mbarrier *barrier, int rank) {
    emulator::arrive((Mbarrier *)emulator::emulator_peer(barrier, rank), 0);
}
__forceinline__ void mbarrier_expect(Mbarrier *barrier, int bytes) {
    emulator::arrive(barrier, bytes);
}
EMULATOR_UNCOUNTED inline bool mbarrier_is_in(Mbarrier *barrier, int parity) {
    return ((emulator::Barrier *)barrier)->phase == parity;
}
__forceinline__ void mbarrier_wait(Mbarrier *barrier, int parity) {
    while (mbarrier_is_in(barrier, parity)) emulator::emulator_poll();
    emulator::emulator_acquire();
}
template <class T>
__forceinline__ const T *cluster_shared(const T *pointer, int rank) {
    return (const T *)emulator::emulator_peer(pointer, rank);
}
__forceinline__ int cluster_rank() { return emulator::emulator_cluster_rank(); }
__forceinline__ void named_barrier(int id, int threads) {
    emulator::emulator_release();
    int generation = emulator::emulator_named_barrier(id, threads);
    while (emulator::emulator_named_barrier_generation(id) == generation) emulator::emulator_poll();
    emulator::emulator_acquire();
}
__forceinline__ void cluster_barrier() { named_barrier(emulator::CLUSTER_BARRIER, 0); }
__forceinline__ void tma_load_2d(
    void *tile, const TensorMap *map, Mbarrier *barrier, int x, int y) {
    emulator::load(tile, map, barrier, x, y);
}
EMULATOR_UNCOUNTED inline void tma_load_2d_multicast(
    void *tile, const TensorMap *map, Mbarrier *barrier, int x, int y, int blocks) {
    for (int rank = 0; blocks >> rank; rank++)
        if (blocks >> rank & 1)
            emulator::load(emulator::emulator_peer(tile, rank), map,
                           (Mbarrier *)emulator::emulator_peer(barrier, rank), x, y);
}
__forceinline__ void tma_store_2d(const TensorMap *map, const void *tile, int x, int y) {
    emulator::store(map, tile, x, y, emulator::Way::store);
}
__forceinline__ void tma_add_2d(const TensorMap *map, const void *tile, int x, int y) {
    emulator::store(map, tile, x, y, emulator::Way::add);
}
__forceinline__ void tma_store_fence() {}
__forceinline__ void tma_store_commit() { emulator::emulator_store_commit(); }
template <int PENDING>
__forceinline__ void tma_store_wait() {
    emulator::emulator_store_wait(PENDING);
}
__forceinline__ void wgmma_fence() {}
__forceinline__ void wgmma_commit() { emulator::emulator_product_commit(); }
template <int PENDING, class... Registers>
__forceinline__ void wgmma_wait(Registers &...) {
    emulator::emulator_product_wait(PENDING);
}
template <class Registers>
__forceinline__ void wgmma_pin(Registers &) {}
#define WGMMA(NAME, FORMAT)                                                                      \
    template <int N, bool A_MN_MAJOR = false, int B_BLOCK = 0, bool ADD = true>                  \
    __forceinline__ void NAME(float (&d)[N / 2], const void *a, const void *b) {                 \
        emulator::wgmma<FORMAT, N, A_MN_MAJOR, B_BLOCK, ADD>(d, a, b);                           \
    }                                                                                            \
    template <int N, int B_BLOCK = 0>                                                            \
    __forceinline__ void NAME##_registers(float (&d)[N / 2], const unsigned (&a)[4],             \
                                          const void *b) {                                       \
        emulator::wgmma<FORMAT, N, B_BLOCK>(d, a, b);                                            \
    }
WGMMA(wgmma_m64k16_bf16, emulator::Bfloat16)
WGMMA(wgmma_m64k16_fp16, emulator::Half)
#undef WGMMA
