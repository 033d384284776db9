"""Arrays in the memory of the host: what the devices without a GPU share."""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract.device import ALIGNMENT, NO_LINK, Device
from ladder.core.contract.libraries import Libraries
from ladder.core.contract.sensors import Sensors


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


class HostArrays:
    """The half of a Device that NumPy arrays decide: memory, copies, and work done at once."""

    is_gpu = False
    runs_reference = True
    asynchronous = False
    marks_in_graphs = False
    bfloat16 = False
    libraries = Libraries()
    processes = None
    group_size = 1
    l2_bytes = 0

    def owners(self, rows: int) -> Sequence[Device]:
        return ()

    def link_bandwidth(self) -> float:
        raise LadderError(NO_LINK)

    def memory(self) -> None:
        return None

    def condition(self) -> None:
        return None

    def sensors(self) -> Sensors:
        return Sensors()

    def description(self) -> Mapping[str, str | int]:
        return {}

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return aligned_empty(shape, dtype)

    def upload(self, array: np.ndarray, host: np.ndarray) -> None:
        np.copyto(array, host, casting="unsafe")

    def zero(self, array: np.ndarray) -> None:
        array.fill(0)

    def copy(self, target: np.ndarray, source: np.ndarray) -> None:
        np.copyto(target, source)

    def download(self, array: np.ndarray) -> np.ndarray:
        return np.array(array)

    def fetch(self, array: np.ndarray) -> Callable[[], np.ndarray]:
        copy = array.copy()
        return lambda: copy

    def synchronize(self) -> None:
        pass

    def free_unused(self) -> None:
        pass

    def fork(self, work: Callable[[], None], urgent: bool = False, behind: None = None) -> None:
        work()

    def join(self, end: None) -> None:
        pass

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, start: float, end: float) -> float:
        return end - start

    def time(self, work: Callable[[], None]) -> float:
        start = self.mark()
        work()
        return self.seconds(start, self.mark())

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        return work

    def annotate(self, name: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()
