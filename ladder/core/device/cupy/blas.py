"""What the vendors' BLAS libraries have in common, called through ctypes on CuPy's arrays.

They store matrices by columns: our (rows, columns) is their (columns, rows).

A handle of theirs submits to one stream, and its kernels keep partial sums in its workspace. So
each stream that work goes to has a handle and a workspace of its own: what is submitted beside
other work would otherwise go behind it, or share its memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from ladder.core.common.errors import LadderError

WORKSPACE_BYTES = 32 << 20  # what NVIDIA recommends for Hopper

# Read when a call is made, not when the GPU gets to it.
ZERO, ONE = ctypes.c_float(0), ctypes.c_float(1)


class Gpu(Protocol):
    """What the libraries need of a GPU (gpu.py): `device` and `stream` are CuPy's."""

    name: str
    device: Any
    stream: Any
    recording: bool

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Any: ...


Made = TypeVar("Made")


class PerStream(Generic[Made]):
    """One of something for each stream of a GPU that work goes to, made at the first use."""

    def __init__(self, gpu: Gpu, make: Callable[[], Made]) -> None:
        self._gpu, self._make = gpu, make
        self._made: dict[int, Made] = {}

    def current(self) -> Made:
        """That of the stream which work goes to now. Raises LadderError where it would have to be
        made while a graph is recorded: memory cannot be allocated then."""
        stream = self._gpu.stream.ptr
        if stream not in self._made:
            if self._gpu.recording:
                raise LadderError(
                    f"{self._gpu.name}: a matrix product of a library is recorded on a stream that "
                    "it has not run on; run the work once before recording it"
                )
            self._made[stream] = self._make()
        return self._made[stream]


def make_workspace(gpu: Gpu) -> Any:
    """Memory for the kernels of a handle."""
    return gpu.empty((WORKSPACE_BYTES,), np.dtype(np.uint8))


def matrix(array: Any, types: Mapping[str, int]) -> tuple[ctypes.c_void_p, int, int]:
    """Address, the library's name of the type, and leading dimension: the length of our rows."""
    return ctypes.c_void_p(array.data.ptr), types[array.dtype.name], array.shape[1]


def check(status: int, device: Gpu, where: str, library: str) -> None:
    """Raise LadderError where a call has failed."""
    if status:
        raise LadderError(f"{device.name}: {library} fails with status {status} {where}")
