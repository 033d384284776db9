// Fibers: stacks, and the few instructions that leave one and enter another.
//
// A switch saves what a called function must preserve and changes the stack pointer: about 2 ns.
// The C library's swapcontext does a system call as well and takes ten times as long.
#pragma once
#include <cstddef>

// Saves the running fiber's stack pointer in *save, and goes on where `to` was saved.
extern "C" __attribute__((visibility("hidden"))) void emulator_switch(void **save, void *to)
    asm("emulator_switch");  // the name as it is: macOS would put an underscore before it

// The stack pointer of a fiber that starts with entry() when it is switched to. `top`: the end of
// its stack, a multiple of 16.
void *fresh_fiber(char *top, void (*entry)());

// Memory for many stacks. Pages cost nothing until they are touched.
class Stacks {
  public:
#ifdef __wasm__  // which has no pages: a browser provides all of it
    static constexpr size_t BYTES = 64 << 10;
#else
    static constexpr size_t BYTES = 256 << 10;
#endif
    Stacks() = default;
    Stacks(const Stacks &) = delete;
    ~Stacks();
    void resize(int count);
    char *top(int index) const;
    bool contains(const void *address) const {
        return (size_t)((const char *)address - memory_) < bytes_;
    }

  private:
    char *memory_ = nullptr;
    size_t bytes_ = 0;
};
