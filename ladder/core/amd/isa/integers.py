"""Arithmetic on whole numbers that vector and scalar instructions have in common."""

from collections.abc import Callable

import numpy as np

Pair = tuple[np.ndarray, np.ndarray]

_BYTES = np.arange(256, dtype=np.uint8)
_REVERSED = np.packbits(np.unpackbits(_BYTES[:, None], axis=1, bitorder="little"), axis=1)[:, 0]


def carry(a: np.ndarray, b: np.ndarray, more: np.ndarray | bool = False) -> Pair:
    """a + b + more of uint32, and whether that is 2**32 at least."""
    total = a.astype(np.uint64) + b + more
    return total.astype(np.uint32), total >> 32 != 0


def borrow(a: np.ndarray, b: np.ndarray, more: np.ndarray | bool = False) -> Pair:
    """a - b - more of uint32, and whether that is negative."""
    total = a.astype(np.int64) - b - more
    return total.astype(np.uint32), total < 0


def high(wide: type) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """The upper 32 of the 64 bits of a product, which the type `wide` holds."""
    return lambda a, b: (a.astype(wide) * b >> 32).astype(a.dtype)


def reverse(a: np.ndarray) -> np.ndarray:
    """The bits the other way round."""
    return _REVERSED[np.ascontiguousarray(a).view(np.uint8)].view(a.dtype).byteswap()
