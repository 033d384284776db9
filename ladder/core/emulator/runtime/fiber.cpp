#include "fiber.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <new>

#if defined(__x86_64__)
asm(R"(
.text
.globl emulator_switch
emulator_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
)");

void *fresh_fiber(char *top, void (*entry)()) {
    void **frame = (void **)top - 8;  // six registers, where to return to, and 0 for a caller
    std::memset(frame, 0, 8 * sizeof(void *));
    frame[6] = (void *)entry;
    return frame;
}
#elif defined(__aarch64__)
asm(R"(
.text
.globl emulator_switch
emulator_switch:
    sub sp, sp, #160
    stp x19, x20, [sp]
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x19, x20, [sp]
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    add sp, sp, #160
    ret
)");

void *fresh_fiber(char *top, void (*entry)()) {
    void **frame = (void **)top - 20;  // the 160 bytes above
    std::memset(frame, 0, 20 * sizeof(void *));
    frame[11] = (void *)entry;  // x30, the link register
    return frame;
}
#else
#error "the emulator has fibers for x86-64 and aarch64"
#endif

Stacks::~Stacks() {
    if (memory_) munmap(memory_, bytes_);
}

void Stacks::resize(int count) {
    if (count * BYTES <= bytes_) return;
    if (memory_) munmap(memory_, bytes_);
    bytes_ = count * BYTES;
    void *memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        memory_ = nullptr, bytes_ = 0;
        throw std::bad_alloc();
    }
    memory_ = (char *)memory;
}

char *Stacks::top(int index) const {
    // Stacks that all end at the same offset of a page would share a few sets of the L1 cache.
    size_t colour = index % 61 * 576;
    return memory_ + (index + 1) * BYTES - colour;
}
