// Which of attention's probabilities dropout keeps: one byte of Philox for each. A byte below
// `threshold` drops its element, so the probability is a multiple of 1/256. The four words of a
// call belong to neighbours, and the four bytes of a word to elements 8 apart:
//
//                     key     key + 1                          key     key + 8
//     query         word 0    word 1           query         byte 0    byte 1
//     query + 1     word 2    word 3           query + 8     byte 2    byte 3
//
// under the counter (number of the group, stream, step, micro-step). `query` and `key` are even,
// and below 8 modulo 16: a 16 x 16 tile has 4 x 4 groups of 16. In D matrices (16 x 8) of mma.sync
// and wgmma, a lane has rows g and g + 8, and columns 2t and 2t + 1 of every 8. So two lanes, with
// neighbouring g, hold all 16 of a group, in a tile (query, key) and in a tile (key, query). Gives
// the same mask as keep_mask in reference/attention_dropout.py.
#pragma once

#include "philox.cuh"
#include "portable.cuh"

struct AttentionMask {
    unsigned seed[2], stream, step, micro_step;
    unsigned threshold;  // p * 256, rounded: a byte below it drops its element
    float share, scale;  // of the elements, share is kept, and multiplied by scale = 1 / share
    unsigned size;       // groups in a row, and in a column, of a head's matrix
    unsigned first;      // the number of the head's first group, modulo 2^32

    // head: b * NH + h. rng (4): seed low, seed high, step, micro-step.
    __device__ __forceinline__ AttentionMask(const unsigned* rng, unsigned stream, float p,
                                             int head, int T)
        : seed{rng[0], rng[1]}, stream(stream), step(rng[2]), micro_step(rng[3]),
          threshold(fminf(rintf(p * 256.0f), 255.0f)), share(1.0f - threshold / 256.0f),
          scale(1.0f / share), size((T + 15) / 16 * 4), first(head * size * size) {}

    // Replaces `words` by the random words of the group that has this query and this key.
    __device__ __forceinline__ void draw_words(unsigned (&words)[4], int query, int key) const {
        words[0] = first + (query / 16 * 4 + query % 8 / 2) * size + key / 16 * 4 + key % 8 / 2;
        words[1] = stream, words[2] = step, words[3] = micro_step;
        philox4x32(words, seed[0], seed[1]);
    }

    // Sets the top bit of each byte of `word` that is at least the threshold: four comparisons in
    // one. The lower seven bits of all bytes are compared by one subtraction, in which the top bit
    // of a byte, set before, prevents a borrow from the next one.
    __device__ __forceinline__ unsigned at_least(unsigned word) const {
        unsigned lower = (word | 0x80808080u) - (threshold & 127) * 0x01010101u;
        return threshold < 128 ? word | lower : word & lower;
    }

    // Which of a group's 16 elements are kept: bit group_bit(...) for each. `query` and `key` are
    // any of the group's.
    __device__ __forceinline__ unsigned draw(int query, int key) const {
        unsigned words[4], kept = 0;
        draw_words(words, query, key);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            kept |= at_least(words[i]) >> (7 - i) & 0x01010101u << i;
        }
        return kept;
    }

    // The bit of the element that is `row` queries and `column` keys after a group's first: 0, 1, 8
    // or 9.
    static __device__ __forceinline__ int group_bit(int row, int column) {
        return row / 8 * 16 + column / 8 * 8 + row % 2 * 2 + column % 2;
    }

    // Whether one element is kept. The other 15 bytes are not used.
    __device__ __forceinline__ bool keeps(int query, int key) const {
        return draw(query, key) >> group_bit(query % 16, key % 16) & 1;
    }

    // Which of a lane's COUNT elements in the D layout are kept: bit lane_bit(i) for element i, of
    // four in each D matrix of a tile (query, key), or, TRANSPOSED, of a tile (key, query). `query`
    // and `key` are those of element 0. COUNT: 16 or 32. All lanes of the warp call it together.
    //
    // Eight elements belong to a 16 x 16 tile: half of a group, whose other half a lane of the next
    // row g has. The one with even g draws the groups of the tiles 0 and 2, the other those of 1
    // and 3, and they exchange halves: all elements of two tiles for one call and half a shuffle.
    template <int COUNT, bool TRANSPOSED = false>
    __device__ __forceinline__ unsigned draw_lane(int query, int key) const {
        constexpr unsigned EVEN = 0x33333333u;  // the bits of even tiles
        // Of a word's neighbours, bit 1 tells the rows of a D matrix apart, bit 0 the columns.
        constexpr int RIGHT = TRANSPOSED ? 2 : 1, BELOW = 3 - RIGHT;
        int odd = lane_id() / 4 % 2;
        unsigned drawn = 0;
#pragma unroll
        for (int i = 0; i < COUNT / 16; i++) {  // bit group_bit(...) + 4 * i
            int along = (2 * i + odd) * 16;
            unsigned words[4];
            draw_words(words, TRANSPOSED ? query + along : query, TRANSPOSED ? key : key + along);
#pragma unroll
            for (int bit = 0; bit < 4; bit++) {
                int word = bit / 2 * BELOW + bit % 2 * RIGHT, to = 4 * i + bit;
                drawn |= at_least(words[word]) >> (7 - to) & 0x01010101u << to;
            }
        }
        // Rows of the other parity move to the place of tiles of the other parity.
        unsigned moved = (drawn >> 2 & EVEN) | (drawn & EVEN) << 2;
        unsigned others = __float_as_uint(shuffle_xor(__uint_as_float(moved), 4));
        unsigned own = EVEN << 2 * odd;
        return (drawn & own) | (others & ~own);
    }

    // The bit of a lane's element i: its 16 x 16 tile and column, of two that are neighbours, and
    // whether it is 8 rows, and 8 columns, after the tile's first.
    template <bool TRANSPOSED = false>
    static __device__ __forceinline__ constexpr int lane_bit(int i) {
        int below = i / 2 % 2, right = i / 4 % 2;
        return (TRANSPOSED ? right * 2 + below : below * 2 + right) * 8 + i / 8 * 2 + i % 2;
    }
};
