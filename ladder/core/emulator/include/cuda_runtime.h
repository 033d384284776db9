// CUDA C++ for a CPU: what a kernel finds without including anything.
#pragma once
#define KERNEL_LADDER_EMULATOR 1
#define __noinline__ __attribute__((noinline))
#include "emulator/qualifiers.h"
#include "emulator/vectors.h"
#include "emulator/thread.h"
#include "emulator/collectives.h"
#include "emulator/atomics.h"
#include "emulator/intrinsics.h"
#include "emulator/launch.h"
#include <assert.h>
#include <float.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
typedef unsigned uint;  // as the C library's headers have it, which nvcc includes
