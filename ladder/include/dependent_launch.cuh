// Programmatic dependent launch, which Hopper added (sm_90): a kernel starts while the one before
// still runs, and waits inside for its end.
//
//     kernel N                            kernel N + 1, launched with `Prefetch: weight`
//     wait_for_previous();                ...
//     start_next();                       ...
//     computes, and writes out            loads weight, into registers
//     ends                                wait_for_previous();
//     ...                                 start_next();
//     ...                                 reads out
//
// So a launch, and the wait for what no kernel before it writes, are hidden behind that kernel.
// Every thread calls both, in this order. Then at most two kernels run at a time: N + 2 starts when
// all blocks of N + 1 have called start_next, and by then N has ended.
//
// The pointers that such a kernel reads from have no __restrict__. Together with `const` it says
// that nobody writes there while the kernel runs, and the compiler may move the load of `out` to
// before the wait, or the load of `weight` to behind it.
//
// PTX ISA, "griddepcontrol": https://docs.nvidia.com/cuda/parallel-thread-execution/
#pragma once

#ifdef KERNEL_LADDER_EMULATOR

__device__ __forceinline__ void wait_for_previous() { emulator::emulator_wait_for_previous(); }
__device__ __forceinline__ void start_next() {}

#else

// `griddepcontrol.wait`: waits until the kernel before has ended, and this thread sees all that it
// wrote. Returns at once where the launch did not ask for an early start.
__device__ __forceinline__ void wait_for_previous() {
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

// `griddepcontrol.launch_dependents`: this block does not mind if the next kernel starts. A block
// that ends without it does so then.
__device__ __forceinline__ void start_next() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

#endif
