"""Fragments: which lane holds which element of `mma.sync`.

The tests compare them with what the CPU twins of `ldmatrix` and `mma.sync` do, and with the
drawings doc/img/mma.svg and mma-lane-5.svg.
"""

from typing import NamedTuple

import numpy as np


class Fragments(NamedTuple):
    """The element that each lane has in each half register: its number in the matrix.

    a  (32, 8) of A (16, 16): row * 16 + k
    b  (32, 4) of B (16, 8): column * 16 + k
    d  (32, 4) of D (16, 8): row * 8 + column
    """

    a: np.ndarray
    b: np.ndarray
    d: np.ndarray


def mma_fragments() -> Fragments:
    """Those of m16n8k16 in 16 bits."""
    lane, i = np.indices((32, 8))
    group, pair = lane // 4, lane % 4 * 2 + i % 2
    return Fragments(
        a=(group + i // 2 % 2 * 8) * 16 + pair + i // 4 * 8,
        b=(group * 16 + pair + i // 2 * 8)[:, :4],
        d=((group + i // 2 * 8) * 8 + pair)[:, :4],
    )
