// The CPU twins of ladder/include/hopper.cuh. What they do is in ../../runtime: mbarrier.cpp,
// async.cpp and wgmma.cpp.
#pragma once
#include "emulator/thread.h"

__forceinline__ unsigned shared_address(const void *pointer) {
    return emulator::emulator_shared_address(pointer);
}
__forceinline__ void mbarrier_init(Mbarrier *barrier, int count) {
    emulator::emulator_barrier_init(barrier, count, emulator::MBARRIER, 0);
}
__forceinline__ void mbarrier_arrive(Mbarrier *barrier) {
    emulator::emulator_mbarrier_arrive(barrier, -1, 0);
}
__forceinline__ void mbarrier_arrive_at(Mbarrier *barrier, int rank) {
    emulator::emulator_mbarrier_arrive(barrier, rank, 0);
}
__forceinline__ void mbarrier_expect(Mbarrier *barrier, int bytes) {
    emulator::emulator_mbarrier_arrive(barrier, -1, bytes);
}
__forceinline__ void mbarrier_wait(Mbarrier *barrier, int parity) {
    emulator::emulator_barrier_wait_parity(barrier, emulator::MBARRIER, parity);
}
template <class T>
__forceinline__ const T *cluster_shared(const T *pointer, int rank) {
    return (const T *)emulator::emulator_peer(pointer, rank);
}
__forceinline__ int cluster_rank() { return emulator::emulator_cluster_rank(); }
__forceinline__ void named_barrier(int id, int threads) {
    emulator::emulator_named_barrier(id, threads);
}
__forceinline__ void cluster_barrier() {
    emulator::emulator_named_barrier(emulator::CLUSTER_BARRIER, 0);
}
// Here every thread has all the registers that it needs.
__forceinline__ void compute_here(int &) {}
template <int COUNT>
__forceinline__ void fewer_registers() {}
template <int COUNT>
__forceinline__ void more_registers() {}
__forceinline__ void tma_load_2d(
    void *tile, const TensorMap *map, Mbarrier *barrier, int x, int y) {
    emulator::emulator_tile_load(tile, map, barrier, x, y, 0);
}
__forceinline__ void tma_load_2d_multicast(
    void *tile, const TensorMap *map, Mbarrier *barrier, int x, int y, int blocks) {
    emulator::emulator_tile_load(tile, map, barrier, x, y, blocks);
}
__forceinline__ void tma_store_2d(const TensorMap *map, const void *tile, int x, int y) {
    emulator::emulator_tile_store(map, tile, x, y, false);
}
__forceinline__ void tma_prefetch_2d(const TensorMap *, int, int) {}  // changes no result
__forceinline__ void tma_add_2d(const TensorMap *map, const void *tile, int x, int y) {
    emulator::emulator_tile_store(map, tile, x, y, true);
}
// What the hardware does with a hint, or within one block of a cluster, gives the same result.
#define tma_load_2d_cta tma_load_2d
#define tma_load_2d_evict_first tma_load_2d
#define tma_store_2d_evict_first tma_store_2d
#define tma_add_2d_evict_last tma_add_2d
__forceinline__ void tma_store_fence() { emulator::emulator_proxy_fence(); }
__forceinline__ void tma_store_commit() { emulator::emulator_tile_store_commit(); }
template <int PENDING>
__forceinline__ void tma_store_wait() {
    emulator::emulator_tile_store_wait(PENDING);
}
__forceinline__ void wgmma_fence() { emulator::emulator_wgmma_fence(); }
__forceinline__ void wgmma_commit() { emulator::emulator_wgmma_commit(); }
template <int PENDING, class... Registers>
__forceinline__ void wgmma_wait(Registers &...) {
    emulator::emulator_wgmma_wait(PENDING);
}
template <class Registers>
__forceinline__ void wgmma_pin(Registers &) {}

#define WGMMA(NAME, FACTORS)                                                                        \
    template <int N, bool A_MN_MAJOR = false, int B_BLOCK = 0, bool ADD = true>                  \
    __forceinline__ void NAME(float (&d)[N / 2], const void *a, const void *b) {                 \
        emulator::Wgmma wgmma{wgmma_descriptor(a, 0), wgmma_descriptor(b, B_BLOCK), nullptr, N,   \
                              emulator::FACTORS, A_MN_MAJOR, (B_BLOCK > 0), ADD};                \
        emulator::emulator_wgmma(d, N / 2, &wgmma);                                              \
    }                                                                                            \
    template <int N, int B_BLOCK = 0>                                                            \
    __forceinline__ void NAME##_registers(float (&d)[N / 2], const unsigned (&a)[4],             \
                                          const void *b) {                                       \
        emulator::Wgmma wgmma{0, wgmma_descriptor(b, B_BLOCK), a, N, emulator::FACTORS, false,   \
                              (B_BLOCK > 0), true};                                              \
        emulator::emulator_wgmma(d, N / 2, &wgmma);                                              \
    }
WGMMA(wgmma_m64k16_bf16, BFLOAT16)
WGMMA(wgmma_m64k16_fp16, FLOAT16)
#undef WGMMA
