// assert() of a kernel: ends the launch with a message. Takes the place of the system's header, and
// like it may be included again and again, depending on NDEBUG.
#undef assert
#ifdef NDEBUG
#define assert(condition) ((void)0)
#else
#include "emulator/thread.h"
#define assert(condition) \
    ((condition) ? (void)0 : emulator::emulator_assert_failed(#condition))
#endif
