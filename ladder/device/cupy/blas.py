"""What the vendors' BLAS libraries have in common, called through ctypes on CuPy's arrays.

They store matrices by columns: our (rows, columns) is their (columns, rows).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from ladder.common.errors import LadderError

WORKSPACE_BYTES = 32 << 20  # what NVIDIA recommends for Hopper

# Read when a call is made, not when the GPU gets to it.
ZERO, ONE = ctypes.c_float(0), ctypes.c_float(1)


class Gpu(Protocol):
    """What the libraries need of a GPU (gpu.py): `device` and `stream` are CuPy's."""

    name: str
    device: Any
    stream: Any

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Any: ...


def matrix(array: Any, types: Mapping[str, int]) -> tuple[ctypes.c_void_p, int, int]:
    """Address, the library's name of the type, and leading dimension: the length of our rows."""
    return ctypes.c_void_p(array.data.ptr), types[array.dtype.name], array.shape[1]


def check(status: int, device: Gpu, where: str, library: str) -> None:
    """Raise LadderError where a call has failed."""
    if status:
        raise LadderError(f"{device.name}: {library} fails with status {status} {where}")
