"""Buffers between guard zones, so that a write or read past an end is detected."""

import math
from collections.abc import Sequence

import numpy as np

from ladder.core.contract.device import ALIGNMENT, Device, Memory
from ladder.core.contract.peers import Rows

GUARD = 64 * ALIGNMENT  # bytes before and after each buffer; a multiple, so that it stays aligned
POISON = 0xFF  # as a byte; in a row it is NaN in float32, float16 and bfloat16, and -1 in int32

WRITES = "it writes"  # what a finding about a guard zone begins with


def guarded(
    device: Device, name: str, shape: tuple[int, ...], dtype: np.dtype, start: int = 0
) -> "Guarded | GuardedRows":
    """A buffer on a device; on a group of devices, one for each row."""
    owners = device.owners(shape[0]) if shape else ()
    if not owners:
        return Guarded(device, name, shape, dtype, start)
    names = (f"row {row} of {name}" for row in range(len(owners)))
    each = zip(owners, names, strict=True)
    return GuardedRows(name, [Guarded(*one, shape[1:], dtype, start) for one in each])


class GuardedRows:
    """An array whose rows are on several devices, each between guard zones of its own."""

    def __init__(self, name: str, rows: Sequence["Guarded"]):
        self.name, self._rows = name, rows
        self.array = Rows([row.array for row in rows])

    def fill(self, content: np.ndarray | None) -> None:
        for index, row in enumerate(self._rows):
            row.fill(None if content is None else content[index])

    def read(self) -> tuple[np.ndarray, str | None]:
        contents, problems = zip(*(row.read() for row in self._rows), strict=True)
        return np.stack(contents), next(filter(None, problems), None)


class Guarded:
    """A device array between two guard zones of NaN.

    A write into a guard zone changes it. A read from one makes the kernel's results NaN.
    """

    def __init__(
        self, device: Memory, name: str, shape: tuple[int, ...], dtype: np.dtype, start: int = 0
    ):
        """`start`: elements from an aligned address on to the first of this array."""
        self.name = name
        self._device = device
        self._shape, self._dtype = shape, np.dtype(dtype)
        size = math.prod(shape) * self._dtype.itemsize
        first = GUARD + start * self._dtype.itemsize % ALIGNMENT
        self._inside = slice(first, first + size)
        self._raw = device.empty((first + size + GUARD,), np.dtype(np.uint8))
        self.array = self._raw[self._inside].view(self._dtype).reshape(shape)

    def fill(self, content: np.ndarray | None) -> None:
        """Write the content, or NaN if there is none, and renew the guards."""
        host = np.full(self._raw.shape, POISON, np.uint8)
        if content is not None:
            host[self._inside] = np.ascontiguousarray(content).reshape(-1).view(np.uint8)
        self._device.upload(self._raw, host)

    def read(self) -> tuple[np.ndarray, str | None]:
        """The content, and what was written around it, if anything."""
        host = self._device.download(self._raw)
        content = host[self._inside].view(self._dtype).reshape(self._shape)
        after = np.flatnonzero(host[self._inside.stop :] != POISON)
        before = np.flatnonzero(host[: self._inside.start] != POISON)
        if after.size:
            gap = f"{after[0]} bytes" if after[0] else "directly"
            return content, f"{WRITES} past the end of {self.name}, {gap} after it"
        if before.size:
            gap = self._inside.start - 1 - before[-1]
            ahead = f"{gap} bytes" if gap else "directly"
            return content, f"{WRITES} before the start of {self.name}, {ahead} before it"
        return content, None
