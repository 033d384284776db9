// Philox4x32-7 on the CPU: the random words of philox.cuh, written once more, to check it by.
#pragma once

#include <cstddef>
#include <cstdint>

// The random word of element i: word i % 4 of what seven rounds make of the counter (i / 4, stream,
// step, micro-step) under the key (seed low, seed high).
// rng (4): seed low, seed high, step, micro-step.
unsigned random_word_cpu(const unsigned* rng, unsigned stream, size_t i) {
    uint32_t word[4] = {(uint32_t)(i / 4), stream, rng[2], rng[3]};
    uint32_t key[2] = {rng[0], rng[1]};
    for (int round = 0; round < 7; round++) {
        uint64_t product0 = 0xD2511F53ull * word[0], product1 = 0xCD9E8D57ull * word[2];
        uint32_t next[4] = {
            (uint32_t)(product1 >> 32) ^ word[1] ^ key[0], (uint32_t)product1,
            (uint32_t)(product0 >> 32) ^ word[3] ^ key[1], (uint32_t)product0};
        for (int k = 0; k < 4; k++) word[k] = next[k];
        key[0] += 0x9E3779B9;
        key[1] += 0xBB67AE85;
    }
    return word[i % 4];
}
