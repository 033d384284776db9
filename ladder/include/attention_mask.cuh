// Which of attention's probabilities dropout keeps, four at a time, so that each of the four words
// of a Philox call is used. In a D matrix (16 x 8) of mma.sync and wgmma, a lane has rows g and
// g + 8; in the next D matrix it has the same rows, 8 columns later. So one lane holds all four of
//
//                     key     key + 8
//     query         word 0    word 1       under the counter
//     query + 8     word 2    word 3       (number of the group, stream, step, micro-step)
//
// and it holds all four in the transposed matrix, too. Gives the same mask as keep_mask in
// reference/attention_dropout.py.
#pragma once

#include "philox.cuh"

struct AttentionMask {
    unsigned seed[2], stream, step, micro_step;
    unsigned threshold;  // p * 2^32: a word below it drops its element
    float scale;         // 1 / (1 - p), of what is kept
    unsigned size;       // groups in a row, and in a column, of a head's matrix
    unsigned first;      // the number of the head's first group, modulo 2^32

    // head: b * NH + h. rng (4): seed low, seed high, step, micro-step.
    __device__ __forceinline__ AttentionMask(const unsigned* rng, unsigned stream, float p,
                                             int head, int T)
        : seed{rng[0], rng[1]}, stream(stream), step(rng[2]), micro_step(rng[3]),
          threshold(p * 4294967296.0f), scale(1.0f / (1.0f - p)), size((T + 15) / 16 * 8),
          first(head * size * size) {}

    // Bit i says whether element i of a group, in the order of the picture, is kept. `query` and
    // `key` are those of the first: both below 8 modulo 16.
    __device__ __forceinline__ unsigned draw(int query, int key) const {
        unsigned row = query / 16 * 8 + query % 8, column = key / 16 * 8 + key % 8;
        unsigned words[4] = {first + row * size + column, stream, step, micro_step}, kept = 0;
        philox4x32(words, seed[0], seed[1]);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            kept |= (unsigned)(words[i] >= threshold) << i;
        }
        return kept;
    }

    // Bit i says whether element i of a lane's COUNT elements in the D layout is kept: four of each
    // D matrix (16 x 8) of a tile (query, key), or, TRANSPOSED, of a tile (key, query). `query` and
    // `key` are those of element 0. COUNT: at most 32, a multiple of 8.
    template <int COUNT, bool TRANSPOSED = false>
    __device__ __forceinline__ unsigned draw_lane(int query, int key) const {
        constexpr int KEY = TRANSPOSED ? 2 : 4, QUERY = 6 - KEY;  // to the element 8 further along
        unsigned kept = 0;
#pragma unroll 1  // two calls at a time: more would need more registers
        for (int i = 0; i < COUNT; i += 8) {  // two D matrices, side by side
#pragma unroll
            for (int j = i; j < i + 2; j++) {  // neighbours in a row of a D matrix
                int along = i * 2 + j % 2;
                unsigned four = TRANSPOSED ? draw(query + along, key) : draw(query, key + along);
                kept |= (four & 1) << j | (four >> 1 & 1) << (j + KEY) |
                        (four >> 2 & 1) << (j + QUERY) | (four >> 3 & 1) << (j + 6);
            }
        }
        return kept;
    }

    // Whether one element is kept; three of its group's words are not used.
    __device__ __forceinline__ bool keeps(int query, int key) const {
        return draw(query & ~8, key & ~8) >> (query / 8 % 2 * 2 + key / 8 % 2) & 1;
    }
};
