// What only the operating system notices: a wild access, a division by zero, an endless loop.
#pragma once
#include <ctime>

struct Launch;

// Finds where the kernel's shared library lies in memory.
void find_code(Launch &launch);

// Guards one OS thread while it works on a launch: a fault of the kernel, or the end of its time,
// ends the launch with a message and not the process. Faults of anything else go to the handlers
// that were there before.
class FaultGuard {
  public:
    FaultGuard(const Launch &launch);
    ~FaultGuard();

  private:
    void *stack_;  // signal handlers get a stack of their own: the fault may be in a fiber's stack
#ifdef __linux__  // elsewhere there is no timer for one thread
    timer_t timer_;
#endif
};
