"""Where kernels run: one small interface, whatever the machine.

cpu        NumPy arrays and the reference only: rung 0 of every ladder
emulated   NumPy arrays, and the real `.cu` files compiled for the CPU (ladder/emulator)
cuda       an NVIDIA GPU through CuPy
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from ladder.contract import Target
from ladder.errors import LadderError
from ladder.rungfile import Launch, Rung

ALIGNMENT = 256  # bytes, as cudaMalloc aligns: a kernel may use 16-byte loads on any buffer


class Kernel(Protocol):
    """A compiled kernel. `args`: arrays, None (a null pointer) and NumPy scalars, in order."""

    def __call__(self, launch: Launch, args: tuple[Any, ...]) -> None: ...


class Device(Protocol):
    """What check, bench, picker and trainer know of a machine."""

    name: str  # "cpu", "emulated", "NVIDIA H200"
    kind: str  # "cpu", "emulated", "cuda"
    asynchronous: bool  # does submitted work go on beside the host?

    def target(self, real: np.dtype) -> Target:
        """What rungs may ask about this device in a run of that real type."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """An uninitialised array, aligned to 256 bytes."""

    def upload(self, array: Any, host: np.ndarray) -> None:
        """Copy `host` into `array` (same shape), converting the dtype; may be asynchronous."""

    def zero(self, array: Any) -> None:
        """Set every element to 0, in order with all other work."""

    def download(self, array: Any) -> np.ndarray:
        """A copy of `array` on the host, after all work submitted so far."""

    def fetch(self, array: Any) -> Callable[[], np.ndarray]:
        """Submit a copy to the host. The result waits for it, and returns `array` as it was when
        the work submitted before was done, whatever has been submitted since."""

    def tensor_map(self, array: Any, box: tuple[int, int]) -> np.void:
        """What a kernel takes as `TensorMap` (include/hopper.cuh), to copy tiles of an array.

        The array counts as a matrix, all dimensions but the last together. `box`: rows and columns
        of a tile; a row of it has 128 bytes. Raises LadderError where the device has no TMA.
        """

    def compile(self, rung: Rung, defines: Mapping[str, int], real: np.dtype) -> dict[str, Kernel]:
        """The kernels of a rung file by name; cached. A compile error names the file's line."""

    def compile_ahead(self, rung: Rung, defines: Mapping[str, int], real: np.dtype) -> object:
        """Compile into the cache what `compile` will load; several threads may do so at once."""

    def synchronize(self) -> None:
        """Wait for all submitted work; an error inside a kernel surfaces here."""

    def time(self, work: Callable[[], None]) -> float:
        """Seconds that `work` takes on the device."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record the launches of `work` once; the result replays them with one call."""


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """np.empty whose data starts at a multiple of 256 bytes; LadderError where memory is short."""
    dtype = np.dtype(dtype)
    size = int(np.prod(shape)) * dtype.itemsize
    try:
        raw = np.empty(size + ALIGNMENT, np.uint8)
    except MemoryError:
        raise LadderError(
            f"this process is out of memory: {size / 2**20:,.0f} MiB more are needed; take a "
            "smaller batch, or raise its limit (ulimit -v)"
        ) from None
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def refuse_tile(array: Any, box: tuple[int, int]) -> None:
    """Raise LadderError where TMA, with its swizzle of 128 bytes, cannot copy such tiles."""
    size = array.dtype.itemsize
    if box[1] * size != 128 or not 0 < box[0] <= 256 or array.shape[-1] * size % 16:
        raise LadderError(
            f"TMA cannot copy tiles of {box[0]} x {box[1]} from {array.dtype} {array.shape}: a "
            "tile has 1 to 256 rows of 128 bytes, and a row of the array a multiple of 16 bytes"
        )


class Cpu:
    """The machine's processor with NumPy: it runs rung 0 of every ladder."""

    name = "cpu"
    kind = "cpu"
    asynchronous = False

    def target(self, real: np.dtype) -> Target:
        return Target("cpu", 32, 1, 0, np.dtype(real))

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return aligned_empty(shape, dtype)

    def upload(self, array: np.ndarray, host: np.ndarray) -> None:
        np.copyto(array, host, casting="unsafe")

    def zero(self, array: np.ndarray) -> None:
        array.fill(0)

    def download(self, array: np.ndarray) -> np.ndarray:
        return array.copy()

    def fetch(self, array: np.ndarray) -> Callable[[], np.ndarray]:
        copy = array.copy()
        return lambda: copy

    def tensor_map(self, array: np.ndarray, box: tuple[int, int]) -> np.void:
        raise LadderError("device cpu has no tiles to copy; it runs the NumPy reference only")

    def compile(self, rung: Rung, defines: Mapping[str, int], real: np.dtype) -> dict[str, Kernel]:
        raise LadderError(
            "device cpu runs the NumPy reference only (rung 0); "
            "--device emulated runs kernels on the CPU, --device cuda on a GPU"
        )

    def compile_ahead(self, rung: Rung, defines: Mapping[str, int], real: np.dtype) -> None:
        """Only what a GPU runs is compiled ahead."""

    def synchronize(self) -> None:
        pass

    def time(self, work: Callable[[], None]) -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        return work


def default_device() -> str:
    """The name of the best device that this machine has: "cuda", or else "emulated"."""
    from ladder.cuda import driver_version

    return "cuda" if driver_version() else "emulated"


def open_device(name: str) -> Device:
    """The device that a flag names: cpu, emulated or cuda (with "cuda:1" the second GPU).

    Raises LadderError with the remedy where the machine cannot serve it.
    """
    if name == "cpu":
        return Cpu()
    if name == "emulated":
        from ladder.emulator import Emulated

        return Emulated()
    if match := re.fullmatch(r"cuda(?::(\d+))?", name):
        from ladder.cuda import Cuda

        return Cuda(int(match.group(1) or 0))
    raise LadderError(f"no device is named {name!r}; there are cpu, emulated and cuda")
