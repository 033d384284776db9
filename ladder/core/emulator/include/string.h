#pragma once
#include <stddef.h>
#if defined(EMULATOR_COUNT) && !defined(__clang__)
#define EMULATOR_HOOKED(NAME) __asm__("__tsan_" NAME)  // gcc itself announces no such access
#else
#define EMULATOR_HOOKED(NAME)
#endif
extern "C" void *memcpy(void *to, const void *from, size_t bytes) noexcept EMULATOR_HOOKED("memcpy");
extern "C" void *memset(void *to, int value, size_t bytes) noexcept EMULATOR_HOOKED("memset");
