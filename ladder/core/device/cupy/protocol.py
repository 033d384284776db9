"""What libraries and exchanges need of a GPU; gpu.py, which has all of it, imports them."""

from typing import Any, Protocol

import numpy as np

from ladder.core.contract.rung_file import Rung


class Gpu(Protocol):
    """`cupy`, `device` and `stream` are CuPy's; `recording`: launches become part of a graph."""

    cupy: Any
    device: Any
    stream: Any
    name: str
    warp: int
    recording: bool

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Any: ...
    def zero(self, array: Any) -> None: ...
    def synchronize(self) -> None: ...
    def compile(self, rung: Rung, defines: dict[str, int], real: np.dtype) -> Any: ...
    def allocation(self, array: Any) -> int: ...
