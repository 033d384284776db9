"""Dropout (Srivastava et al. 2014): zero each element with probability p, scale up the others.

    out  = inp  * mask / (1 - p)        mask = 1 with probability 1 - p, else 0
    dinp = dout * mask / (1 - p)

Element i is kept if its random word, word i % 4 of philox4x32 with

    counter = (i // 4, stream, step, micro-step)    key = (seed low, seed high)

is at least p * 2^32. Kept for backward: nothing, the mask is drawn again.
`rng` holds (seed low, seed high, step, micro-step); `stream` tells the dropouts of a step apart.
"""

import numpy as np

from reference.blocks import blocks
from reference.philox import random_words


def forward(out: np.ndarray, inp: np.ndarray, rng: np.ndarray, *, p: float, stream: int) -> None:
    """out (N) from inp (N) and rng (4)."""
    p = float(np.float32(p))  # as a kernel sees it, so that masks agree to the last element
    threshold = int(p * 2**32)
    for block in blocks(inp.size):  # starts at a multiple of 4
        keep = random_words(rng, stream, block) >= threshold
        out[block] = np.where(keep, inp[block] / (1 - p), 0)


def backward(dinp: np.ndarray, dout: np.ndarray, rng: np.ndarray, *, p: float, stream: int) -> None:
    """dinp (N) from dout (N) and rng (4): the same mask and scale, applied to the gradient."""
    forward(dinp, dout, rng, p=p, stream=stream)
