// printf() of a kernel: what it prints is collected, and written by Python after the launch.
#pragma once
#include "emulator/thread.h"
#define printf(...) emulator::emulator_print(__VA_ARGS__)
