#pragma once
using size_t = decltype(sizeof 0);
using ptrdiff_t = decltype((char *)0 - (char *)0);
#define NULL 0
#define offsetof(type, member) __builtin_offsetof(type, member)
