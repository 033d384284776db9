// Fibers in WebAssembly, where no code can change the stack: Asyncify, a pass of Binaryen
// (https://github.com/WebAssembly/binaryen/blob/main/src/passes/Asyncify.cpp), rewrites functions so
// that they can save their locals and return, and later be called again and go on. What it does not
// save is the part of the stack that lies in memory, where variables are whose address is taken:
// each fiber has a piece of memory for it, as on other machines.
#include "fiber.h"

#include <cstdlib>
#include <map>

#define ASYNCIFY(NAME) __attribute__((import_module("asyncify"), import_name(#NAME)))
extern "C" {
ASYNCIFY(start_unwind) void asyncify_start_unwind(void *);
ASYNCIFY(stop_unwind) void asyncify_stop_unwind();
ASYNCIFY(start_rewind) void asyncify_start_rewind(void *);
ASYNCIFY(stop_rewind) void asyncify_stop_rewind();
}

namespace {

struct Context {
    struct {
        char *next, *end;
    } saved;  // what Asyncify reads and writes: where the next locals go, and the end
    void (*entry)();
    char *top;    // of the stack in memory
    char *stack;  // its pointer, while another fiber runs
    bool started;
    char locals[16 << 10];
};

Context *running;
bool rewinding;

inline char *stack_pointer() {
    char *pointer;
    asm volatile("global.get __stack_pointer\nlocal.set %0" : "=r"(pointer));
    return pointer;
}
inline void set_stack_pointer(char *pointer) {
    asm volatile("local.get %0\nglobal.set __stack_pointer" ::"r"(pointer));
}

// From the scheduler: returns when the fiber leaves.
__attribute__((noinline)) void resume(Context *context) {
    char *ours = stack_pointer();
    running = context;
    if (context->started) {
        set_stack_pointer(context->stack);
        rewinding = true;
        asyncify_start_rewind(&context->saved);
    } else {
        context->started = true;
        set_stack_pointer(context->top);
    }
    context->entry();
    asyncify_stop_unwind();
    set_stack_pointer(ours);
    running = nullptr;
}

// From a fiber, twice: to leave it, and when it goes on.
__attribute__((noinline)) void leave() {
    if (rewinding) {
        asyncify_stop_rewind();
        rewinding = false;
        return;
    }
    running->stack = stack_pointer();
    running->saved = {running->locals, running->locals + sizeof running->locals};
    asyncify_start_unwind(&running->saved);
}

}  // namespace

// Fibers switch to the scheduler and back, never to each other.
extern "C" __attribute__((noinline)) void emulator_switch(void **, void *to) {
    if (running) leave();
    else resume((Context *)to);
}

void *fresh_fiber(char *top, void (*entry)()) {
    static std::map<char *, Context *> contexts;  // one for each stack, used again and again
    Context *&context = contexts[top];
    if (!context) context = new Context;
    context->entry = entry;
    context->top = top;
    context->started = false;
    return context;
}

Stacks::~Stacks() { std::free(memory_); }

void Stacks::resize(int count) {
    if (count * BYTES <= bytes_) return;
    std::free(memory_);
    bytes_ = count * BYTES;
    memory_ = (char *)std::malloc(bytes_);
    if (!memory_) __builtin_trap();
}

char *Stacks::top(int index) const {
    return (char *)((size_t)(memory_ + (index + 1) * BYTES) & ~(size_t)15);
}
