"""Where kernels run: one interface for every kind of device.

cpu        NumPy arrays and the reference only: rung 0 of every ladder
emulated   NumPy arrays, and the real `.cu` files compiled for the CPU (ladder/core/emulator)
cuda       an NVIDIA GPU through CuPy
hip        an AMD GPU through CuPy
isa        NumPy arrays, and an AMD GPU's machine code, interpreted (ladder/core/amd/isa)

What depends on the kind of device asks the device for one of its capabilities (`is_gpu`,
`runs_kernels`, `l2_bytes`, ...), so that another kind is one folder in ladder/core/device and one
line in ladder/core/device/open.py. `kind` only labels records: nothing is decided by it.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract.launch_plan import Launch
from ladder.core.contract.rung_file import Rung
from ladder.core.contract.target import Target

NO_LINK = (
    "an exchange between GPUs is measured on several of them: --device cuda:0,1; "
    "'python -m ladder check' runs all ranks on one"
)
ALIGNMENT = 256  # bytes, as cudaMalloc aligns: a kernel may use 16-byte loads on any buffer


# A compiled kernel. Its arguments are arrays, None (a null pointer) and NumPy scalars, in order.
Kernel = Callable[[Launch, tuple[Any, ...]], None]


@dataclass(frozen=True)
class Reading:
    """What a GPU's sensors said while something was timed: medians of the samples; None: the GPU
    does not tell.

    slowed      what held the clock down, and in which share of the samples; empty: nothing did
    mean_watts  by the energy counter: what was used between two of its changes, and their distance
    """

    samples: int
    sm_mhz: float | None = None  # clock of the SMs
    watts: float | None = None
    limit_watts: float | None = None
    celsius: float | None = None
    slowed: dict[str, float] | None = None
    mean_watts: float | None = None


class Sensors:
    """Of a device with no sensors, or none that can be asked.

    with device.sensors() as sensors:
        ...                         # warm-up
        sensors.begin()
        ...                         # what is timed
        reading = sensors.end()
    """

    counts_energy = False

    def __enter__(self) -> Sensors:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def begin(self) -> None:
        """Only samples after this count."""

    def end(self) -> Reading | None:
        """What the samples since `begin` say; None where there are none."""
        return None


class Communicator(Protocol):
    """What the processes of a group do together with the arrays of their devices: every one of them
    calls the same methods in the same order, each with an array of its own of the same size.

    Each array is cut into as many equal shares as there are ranks. Everything happens in place, in
    order with the device's other work, and can be recorded into a graph. Several arrays go as one
    exchange.

    name  what does it, for messages: "NCCL", "P2P"
    """

    @property
    def name(self) -> str: ...

    def all_reduce(self, *arrays: Any) -> None:
        """The arrays (float32) become their sum over all ranks."""

    def reduce_scatter(self, *arrays: Any) -> None:
        """On rank r, share r (float32) becomes the sum over all ranks; the rest is undefined."""

    def all_gather(self, *arrays: Any) -> None:
        """Share r becomes on every rank what it is on rank r."""

    def close(self) -> None:
        """Leave the group, once all submitted work is done. Graphs that recorded an exchange must
        be gone before."""


class Memory:
    """Arrays in the memory of a device; here NumPy's, of the host.

    runs_reference   its arrays are NumPy's, so that it runs rung 0 of every ladder
    """

    runs_reference = True

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """An uninitialised array, aligned to 256 bytes."""
        return aligned_empty(shape, dtype)

    def upload(self, array: Any, host: np.ndarray) -> None:
        """Copy `host` into `array` (same shape), converting the dtype; may be asynchronous."""
        np.copyto(array, host, casting="unsafe")

    def zero(self, array: Any) -> None:
        """Set every element to 0, in order with all other work."""
        array.fill(0)

    def download(self, array: Any) -> np.ndarray:
        """A copy of `array` on the host, after all work submitted so far."""
        return np.array(array)

    def fetch(self, array: Any) -> Callable[[], np.ndarray]:
        """Submit a copy to the host. The result waits for it, and returns `array` as it was when
        the work submitted before was done, whatever has been submitted since."""
        copy = self.download(array)
        return lambda: copy

    def copy(self, target: Any, source: Any) -> None:
        """Copy one array of the device into another of the same shape and dtype, in order with
        all other work."""
        np.copyto(target, source)

    def memory(self) -> tuple[int, int] | None:
        """Bytes that can still be allocated, and bytes in all; None where it is the host's."""
        return None

    def free_unused(self) -> None:
        """Give memory that no array needs any more back to the system, for other libraries."""


class Streams:
    """Work in order and beside each other, its time, and graphs of it; here all is done at once.

    asynchronous     submitted work goes on beside the host
    marks_in_graphs  a `mark` within `capture` notes the time of each replay
    measurable       the time that work takes says how fast it is; the emulator's does not
    """

    asynchronous = False
    marks_in_graphs = False
    measurable = True

    def synchronize(self) -> None:
        """Wait for all submitted work; an error inside a kernel surfaces here."""

    def fork(self, work: Callable[[], None], urgent: bool = False, behind: Any = None) -> Any:
        """Submit work that waits for all that was submitted before, and then goes on beside what is
        submitted later; the urgent forks run one after the other, and so do the rest.
        A device that does one thing at a time does it at once.

        urgent  where the device has room for one kernel, this work goes first
        behind  the end of an earlier fork, for which it waits, too

        Returns a note of the work's end, for `join`.
        """
        work()

    def join(self, end: Any) -> None:
        """All that is submitted from here on waits for the fork that `end` is of."""

    def mark(self) -> Any:
        """Submit a note of the time, in order with all other work; for `seconds`."""
        return time.perf_counter()

    def seconds(self, start: Any, end: Any) -> float:
        """Seconds on the device between two marks, once it has passed both."""
        elapsed: float = end - start
        return elapsed

    def time(self, work: Callable[[], None]) -> float:
        """Seconds that `work` takes on the device."""
        start = self.mark()
        work()
        return self.seconds(start, self.mark())

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record the launches of `work` once; the result replays them with one call."""
        return work

    def annotate(self, name: str) -> AbstractContextManager[Any]:
        """A range in which a profiler shows the work that is submitted, under that name."""
        return nullcontext()


class Libraries:
    """The vendor's libraries, None where there is none. Each is made when it is first asked for
    (not while a graph records); LadderError where it does not load.

    library_rungs    the ids of those that they can run: {"cublas", ...}
    """

    name: str
    library_rungs: Set[str] = frozenset()

    def matrix_product(self, tf32: bool = False) -> Any:
        """Multiplies two matrices (cuBLAS), as `Multiplier` of ladder/core/device/cupy/blas.py;
        `tf32`: float32 is multiplied as TF32."""
        return None

    def linear_layer(self, tf32: bool = False) -> Any:
        """A linear layer in one kernel: `Linear` of ladder/core/device/cuda/cublas.py."""
        return None

    @property
    def group_sum(self) -> Any:
        """Of a group of devices, an all-reduce: `GroupSum` of ladder/core/device/cupy/nccl.py."""
        return None


class Links:
    """What leads from a device to others; here nothing does.

    group_size   how many devices it is: 1, or those of a group, which share out the ranks of an op
    """

    group_size = 1

    def owners(self, rows: int) -> Sequence[Device]:
        """Of a group of devices: that in whose memory each row of an array (rows, ...) is. Empty
        for a single device. Raises LadderError where the rows cannot be shared out."""
        return ()

    def link_bandwidth(self) -> float:
        """Bytes per second that each device of a group receives from another by a plain copy, while
        it sends as many. Raises LadderError for a single device, which has no link to measure."""
        raise LadderError(NO_LINK)

    @property
    def processes(self) -> Any:
        """What exchanges its arrays with the devices of other processes, as `CupyGpu` does; None
        where the arrays are the host's, and the host exchanges them, and for a group."""
        return None


class Device(Memory, Streams, Libraries, Links, ABC):
    """What check, bench, picker and trainer know of a machine; who needs less of it asks for that.

    name         for messages: "cpu", "emulated", "NVIDIA H200"
    kind         what `--device` calls it, without a number: "cpu", "emulated", "cuda", "hip", "isa"
    is_gpu       it runs kernels at the speed of a GPU: large shapes and exact timings are worth
                 their while, and PyTorch can be measured beside it
    runs_kernels     it compiles and launches `.cu` files
    bfloat16     it multiplies matrices of bfloat16 in hardware
    l2_bytes     the size of the cache that all its processors share; 0 where it plays no part
    """

    name: str
    kind: str
    runs_kernels = True
    is_gpu = False
    bfloat16 = False
    l2_bytes = 0

    @abstractmethod
    def target(self, real: np.dtype) -> Target:
        """What rungs may ask about this device in a run of that real type."""

    def tensor_map(self, array: Any, box: tuple[int, int], tf32: bool = False) -> np.void:
        """What a kernel takes as `TensorMap` (include/hopper.cuh), to copy tiles of an array.

        The array counts as a matrix, all dimensions but the last together. `box`: rows and columns
        of a tile; a row of it has 128 bytes. `tf32`: float32 is rounded to TF32 when it is loaded.
        """
        raise LadderError(f"{self.name} has no TMA to copy tiles; it is NVIDIA's, from sm_90 on")

    @abstractmethod
    def compile(
        self, rung: Rung, defines: Mapping[str, int], real: np.dtype
    ) -> Mapping[str, Kernel]:
        """The kernels of a rung file by name; cached. A compile error names the file's line."""

    def compile_ahead(self, rung: Rung, defines: Mapping[str, int], real: np.dtype) -> object:
        """Compile into the cache what `compile` will load; several threads may do so at once."""

    def condition(self) -> str | None:
        """Its clock, power and temperature at this moment, in words; None where it does not tell.
        It takes a tenth of a second, and does not wait for submitted work."""
        return None

    def sensors(self) -> Sensors:
        """Its clock, power and temperature over a time, of which the samples are taken beside the
        work."""
        return Sensors()

    def description(self) -> Mapping[str, str | int]:
        """What belongs to a measurement: the GPU, and the versions of what drives it. Empty where
        there is nothing to tell but the host."""
        return {}


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
