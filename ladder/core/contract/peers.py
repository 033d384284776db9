"""What a kernel gets that runs for several ranks at once, each with memory of its own.

An op with ranks (`Op.ranks`) has arguments of R rows, one for each rank. Its kernels take such an
argument as `Peers<real> inp` (include/peers.cuh): the addresses of all R rows, each of which may be
in the memory of another GPU. A launch has the ranks along y: block (x, y) belongs to rank
`first_rank + y`. One device runs all ranks in one launch; a group of devices shares them out, and
each launch of its own begins with another `first_rank`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

MOST_RANKS = 8  # addresses in Peers


@dataclass(frozen=True)
class Rows:
    """An array (R, ...) whose rows are on several devices."""

    rows: Sequence[Any]

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.rows), *self.rows[0].shape

    @property
    def dtype(self) -> np.dtype:
        dtype: np.dtype = self.rows[0].dtype
        return dtype

    @property
    def flags(self) -> SimpleNamespace:
        return SimpleNamespace(c_contiguous=all(row.flags.c_contiguous for row in self.rows))

    @property
    def nbytes(self) -> int:
        return sum(row.nbytes for row in self.rows)


@dataclass(frozen=True)
class Peers:
    """An argument that kernels take as `Peers`: the rows of an array.

    scratch  it belongs to the op and not to its caller, who may use the array before a rank's
             kernel begins and after it has ended
    """

    array: Any
    scratch: bool = False

    def addresses(self) -> list[int]:
        """Where each row begins."""
        if isinstance(self.array, Rows):
            return [address(row) for row in self.array.rows]
        begin, ranks = address(self.array), self.array.shape[0]
        return [begin + self.array.nbytes // ranks * rank for rank in range(ranks)]


@dataclass(frozen=True)
class FirstRank:
    """The rank of the blocks with blockIdx.y == 0."""

    rank: int = 0


def address(array: Any) -> int:
    """Where an array of NumPy or CuPy begins."""
    where: int = array.ctypes.data if isinstance(array, np.ndarray) else array.data.ptr
    return where


def structure(addresses: Sequence[int]) -> np.void:
    """The structure Peers of peers.cuh, with these addresses, at most MOST_RANKS."""
    places = np.zeros(MOST_RANKS, np.uint64)
    places[: len(addresses)] = addresses
    opaque: np.void = places.view(f"V{places.nbytes}")[0]
    return opaque


def by_value(arg: Any) -> Any:
    """What is passed for an argument of a kernel: a structure for Peers."""
    if isinstance(arg, Peers):
        return structure(arg.addresses())
    return np.int32(arg.rank) if isinstance(arg, FirstRank) else arg
