#pragma once

#include <cmath>
#include <cstdint>

#include "attention.h"

// Word i % 4 of what seven rounds of Philox4x32 make of the counter (i / 4, stream, step,
// micro-step). rng (4): seed low, seed high, step, micro-step.
uint32_t random_word(const Array<unsigned>& rng, unsigned stream, size_t i) {
    uint32_t word[4] = {(uint32_t)(i / 4), stream, rng.start[2], rng.start[3]};
    uint32_t key[2] = {rng.start[0], rng.start[1]};
    for (int round = 0; round < 7; round++) {
        uint64_t product0 = 0xD2511F53ull * word[0], product1 = 0xCD9E8D57ull * word[2];
        word[0] = (uint32_t)(product1 >> 32) ^ word[1] ^ key[0];
        word[1] = (uint32_t)product1;
        word[2] = (uint32_t)(product0 >> 32) ^ word[3] ^ key[1];
        word[3] = (uint32_t)product0;
        key[0] += 0x9E3779B9;
        key[1] += 0xBB67AE85;
    }
    return word[i % 4];
}

// As without dropout, with the mask that attention_mask.cuh describes.
template <class T>
void save_attention_dropout(
    Array<T>& out, Array<float>& lse, const Array<T>& qkv, const Array<unsigned>& rng, float p,
    unsigned stream) {
    const double threshold = std::fmin(std::rint(p * 256), 255);
    const size_t size = (lse.columns + 15) / 16 * 4;  // groups of 16 in a row of a head's matrix
    save_attention(out, lse, qkv, [&](size_t head, size_t query, size_t key) {
        size_t row = query / 16 * 4 + query % 8 / 2, column = key / 16 * 4 + key % 8 / 2;
        size_t group = (head * size + row) * size + column;
        uint32_t word = random_word(rng, stream, group * 4 + query % 2 * 2 + key % 2);
        uint32_t byte = word >> 8 * (query / 8 % 2 * 2 + key / 8 % 2) & 255;
        return byte >= threshold ? 256 / (256 - threshold) : 0;
    });
}
