"""Dropout (Srivastava et al. 2014): zero each element with probability p, scale up the others.

    out  = inp  * mask / share          mask = 1 with probability share, else 0
    dinp = dout * mask / share

Element i gets a half word of 16 bits: half i % 2, the lower one first, of word i // 2 % 4 of
philox4x32 with

    counter = (i // 8, stream, step, micro-step)    key = (seed low, seed high)

It is kept if its half word is at least p * 2^16, rounded: p is taken as a multiple of 1 / 65536,
and share is 1 - p for that p. So eight elements take one call of Philox.

Kept for backward: nothing, the mask is drawn again.
`rng` holds (seed low, seed high, step, micro-step); `stream` tells the dropouts of a step apart.
"""

import numpy as np

from reference.blocks import blocks
from reference.philox import random_words

VALUES = 1 << 16  # of a half word


def drop_threshold(p: float, values: int = VALUES) -> int:
    """Of so many values of a random number, those that drop their element: p * values, rounded, and
    not all."""
    return min(round(float(np.float32(p)) * values), values - 1)  # p in float32, as a kernel's


def forward(out: np.ndarray, inp: np.ndarray, rng: np.ndarray, *, p: float, stream: int) -> None:
    """out (N) from inp (N) and rng (4)."""
    threshold = drop_threshold(p)
    share = 1 - threshold / VALUES
    for block in blocks(inp.size):  # starts at a multiple of 8
        words = random_words(rng, stream, slice(block.start // 2, -(-block.stop // 2)))
        halves = np.stack([words & 0xFFFF, words >> 16], axis=1).reshape(-1)
        keep = halves[: block.stop - block.start] >= threshold
        out[block] = np.where(keep, inp[block] / share, 0)


def backward(dinp: np.ndarray, dout: np.ndarray, rng: np.ndarray, *, p: float, stream: int) -> None:
    """dinp (N) from dout (N) and rng (4): the same mask and scale, applied to the gradient."""
    forward(dinp, dout, rng, p=p, stream=stream)
