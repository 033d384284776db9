// The functions of C for cp.async: a thread starts copies, commits them as a group, and waits.
// https://docs.nvidia.com/cuda/cuda-c-programming-guide/#pipeline-primitives-interface
#pragma once
#include "cuda_runtime.h"

__forceinline__ void __pipeline_memcpy_async(
    void *shared, const void *global, size_t bytes, size_t zeros = 0) {
    emulator::emulator_memcpy_piece(shared, global, bytes, bytes - zeros);
}
__forceinline__ void __pipeline_commit() { emulator::emulator_async_commit(); }
__forceinline__ void __pipeline_wait_prior(size_t groups) {
    emulator::emulator_async_wait((int)groups);
}
