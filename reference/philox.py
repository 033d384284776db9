"""Philox4x32-7: random numbers that are a function of a counter (Salmon, Moraes, Dror and Shaw,
"Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011).

There is no state to carry from one number to the next: seven rounds of multiply and xor turn a
counter of four 32-bit words, under a key of two, into four random words. Any thread of a GPU can
thus draw the numbers of any element, in any order, and draw them again in the backward pass.

The paper recommends ten rounds and reports that seven pass all tests of BigCrush. The numbers here
decide what is dropped and how weights are rounded, and a kernel's time depends on them, so we take
seven, as FlashAttention does.
"""

import numpy as np
from numpy.typing import ArrayLike

ROUNDS = 7
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)  # added to the key each round: golden ratio, sqrt(3) - 1
LOW = np.uint64(0xFFFFFFFF)
SHIFT = np.uint64(32)


def philox4x32(counter: tuple[ArrayLike, ...], key: tuple[int, int]) -> np.ndarray:
    """(n, 4) uint32 words for n counters; each of a counter's four words is an int or an (n)."""
    c0, c1, c2, c3 = (np.atleast_1d(np.asarray(word, np.uint64)) for word in counter)
    k0, k1 = int(key[0]), int(key[1])
    m0, m1 = (np.uint64(multiplier) for multiplier in MULTIPLIERS)
    for _ in range(ROUNDS):
        product0, product1 = m0 * c0, m1 * c2  # 32 x 32 -> 64 bits
        c0 = (product1 >> SHIFT) ^ c1 ^ np.uint64(k0)
        c1 = product1 & LOW
        c2 = (product0 >> SHIFT) ^ c3 ^ np.uint64(k1)
        c3 = product0 & LOW
        k0, k1 = (k0 + WEYL[0]) & 0xFFFFFFFF, (k1 + WEYL[1]) & 0xFFFFFFFF
    words = np.broadcast_arrays(c0, c1, c2, c3)
    return np.stack(words, axis=1).astype(np.uint32)


def random_words(rng: np.ndarray, stream: int, block: slice) -> np.ndarray:
    """The words of elements block.start, a multiple of 4, to block.stop: one uint32 for each.

    Element i has word i % 4 of the counter (i // 4 modulo 2^32, stream, step, micro-step) under the
    key (seed low, seed high), where rng is (seed low, seed high, step, micro-step).
    """
    low, high, step, micro_step = (int(word) for word in rng)
    counters = np.arange(block.start // 4, -(-block.stop // 4)) & 0xFFFFFFFF
    words = philox4x32((counters, int(stream), step, micro_step), (low, high)).ravel()
    return words[: block.stop - block.start]
