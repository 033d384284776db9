#pragma once
#include <stddef.h>
extern "C" void *memcpy(void *to, const void *from, size_t bytes) noexcept EMULATOR_HOOKED("memcpy");
extern "C" void *memset(void *to, int value, size_t bytes) noexcept EMULATOR_HOOKED("memset");
