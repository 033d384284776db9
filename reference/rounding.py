"""Stochastic rounding (Gupta, Agrawal, Gopalakrishnan and Narayanan, "Deep Learning with Limited
Numerical Precision", ICML 2015).

    round(x) = low    with probability (high - x) / (high - low)      low <= x < high neighbours
               high   with probability (x - low) / (high - low)

Its expected value is x. Rounded to nearest, a weight that moves by less than half of its last bit
never moves at all; rounded at random, it moves by the right amount on average.
"""

import numpy as np


def round_at_random(x: np.ndarray, words: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """x (n), float32, in a 16-bit dtype; words (n) are random uint32.

    What overflows when rounded to nearest, and NaN, stays.
    """
    nearest = x.astype(dtype)
    size = np.abs(x)

    def size_of(bits: np.ndarray) -> np.ndarray:
        return np.abs(bits.view(dtype).astype(np.float32))

    # Sign and size: one more is the next number away from 0, even across powers of two.
    bits = nearest.view(np.uint16)
    with np.errstate(all="ignore"):  # the neighbour of the largest number is infinity
        bits = bits - (size_of(bits) > size)  # the neighbour towards 0
        part, gap = size - size_of(bits), size_of(bits + np.uint16(1)) - size_of(bits)
        # All exact: a part of the gap, a power of two, and 24 random bits in [0, 1).
        up = part > gap * ((words >> np.uint32(8)).astype(np.float32) * np.float32(2**-24))
    return np.where(np.isfinite(nearest), (bits + up).view(dtype), nearest)
