"""Where kernels run: one interface for every kind of device.

cpu        NumPy arrays and the reference only: rung 0 of every ladder
emulated   NumPy arrays, and the real `.cu` files compiled for the CPU (ladder/core/emulator)
cuda       an NVIDIA GPU through CuPy
hip        an AMD GPU through CuPy
isa        NumPy arrays, and an AMD GPU's machine code, interpreted (ladder/core/amd/isa)

What depends on the kind of device asks the device for one of its capabilities (`is_gpu`,
`runs_kernels`, `libraries`, ...), so that another kind is one folder in ladder/core/device and one
line in ladder/core/device/open.py. `kind` only labels records: nothing is decided by it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract.collectives import Processes
from ladder.core.contract.launch_plan import Launch
from ladder.core.contract.libraries import Libraries
from ladder.core.contract.rung_file import Rung
from ladder.core.contract.sensors import Sensors
from ladder.core.contract.target import Target

NO_LINK = (
    "an exchange between GPUs is measured on several of them: --device cuda:0,1; "
    "'python -m ladder check' runs all ranks on one"
)
ALIGNMENT = 256  # bytes, as cudaMalloc aligns: a kernel may use 16-byte loads on any buffer


class Kernel(Protocol):
    """A compiled kernel. `args`: arrays, None (a null pointer) and NumPy scalars, in order."""

    def __call__(self, launch: Launch, args: tuple[Any, ...]) -> None: ...


class Device(Protocol):
    """What check, bench, picker and trainer know of a machine."""

    # ---- what it is, and what it can do ----

    def __hash__(self) -> int:
        """What belongs to a device, such as a kernel, is kept by it in a cache."""

    @property
    def name(self) -> str:
        """For messages: "cpu", "emulated", "NVIDIA H200"."""

    @property
    def kind(self) -> str:
        """What `--device` calls it, without a number: "cpu", "emulated", "cuda", "hip", "isa"."""

    @property
    def is_gpu(self) -> bool:
        """Whether it runs kernels at the speed of a GPU: large shapes and exact timings are worth
        their while, and PyTorch can be measured beside it."""

    @property
    def runs_reference(self) -> bool:
        """Whether its arrays are NumPy's, so that it runs rung 0 of every ladder."""

    @property
    def runs_kernels(self) -> bool:
        """Whether it compiles and launches `.cu` files."""

    @property
    def measurable(self) -> bool:
        """Whether the time that work takes on it says how fast that work is; the emulator's does
        not."""

    @property
    def asynchronous(self) -> bool:
        """Whether submitted work goes on beside the host."""

    @property
    def marks_in_graphs(self) -> bool:
        """Whether a `mark` within `capture` notes the time of each replay."""

    @property
    def bfloat16(self) -> bool:
        """Whether it multiplies matrices of bfloat16 in hardware."""

    @property
    def libraries(self) -> Libraries:
        """The vendor's libraries on it."""

    @property
    def l2_bytes(self) -> int:
        """The size of the cache that all its processors share; 0 where it plays no part."""

    def memory(self) -> tuple[int, int] | None:
        """Bytes that can still be allocated, and bytes in all; None where it is the host's."""

    def condition(self) -> str | None:
        """Its clock, power and temperature at this moment, in words; None where it does not tell.
        It takes a tenth of a second, and does not wait for submitted work."""

    def sensors(self) -> Sensors:
        """Its clock, power and temperature over a time, of which the samples are taken beside the
        work."""

    def description(self) -> Mapping[str, str | int]:
        """What belongs to a measurement: the GPU, and the versions of what drives it. Empty where
        there is nothing to tell but the host."""

    # ---- other devices ----

    @property
    def group_size(self) -> int:
        """How many devices it is: 1, or those of a group, which share out the ranks of an op."""

    def owners(self, rows: int) -> Sequence[Device]:
        """Of a group of devices: that in whose memory each row of an array (rows, ...) is. Empty
        for a single device. Raises LadderError where the rows cannot be shared out."""

    def link_bandwidth(self) -> float:
        """Bytes per second that each device of a group receives from another by a plain copy, while
        it sends as many. Raises LadderError for a single device, which has no link to measure."""

    @property
    def processes(self) -> Processes | None:
        """How it exchanges arrays with the devices of other processes; None where the arrays are
        the host's, and the host exchanges them, and for a group."""

    # ---- arrays, kernels and time ----

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

    def copy(self, target: Any, source: Any) -> None:
        """Copy one array of the device into another of the same shape and dtype, in order with
        all other work."""

    def tensor_map(self, array: Any, box: tuple[int, int], tf32: bool = False) -> np.void:
        """What a kernel takes as `TensorMap` (include/hopper.cuh), to copy tiles of an array.

        The array counts as a matrix, all dimensions but the last together. `box`: rows and columns
        of a tile; a row of it has 128 bytes. `tf32`: float32 is rounded to TF32 when it is loaded.
        Raises LadderError where the device has no TMA.
        """

    def compile(
        self, rung: Rung, defines: Mapping[str, int], real: np.dtype
    ) -> Mapping[str, Kernel]:
        """The kernels of a rung file by name; cached. A compile error names the file's line."""

    def compile_ahead(self, rung: Rung, defines: Mapping[str, int], real: np.dtype) -> object:
        """Compile into the cache what `compile` will load; several threads may do so at once."""

    def synchronize(self) -> None:
        """Wait for all submitted work; an error inside a kernel surfaces here."""

    def free_unused(self) -> None:
        """Give memory that no array needs any more back to the system, for other libraries."""

    def fork(self, work: Callable[[], None], urgent: bool = False, behind: Any = None) -> Any:
        """Submit work that waits for all that was submitted before, and then goes on beside what is
        submitted later; the urgent forks run one after the other, and so do the rest.
        A device that does one thing at a time does it at once.

        urgent  where the device has room for one kernel, this work goes first
        behind  the end of an earlier fork, for which it waits, too

        Returns a note of the work's end, for `join`.
        """

    def join(self, end: Any) -> None:
        """All that is submitted from here on waits for the fork that `end` is of."""

    def mark(self) -> Any:
        """Submit a note of the time, in order with all other work; for `seconds`."""

    def seconds(self, start: Any, end: Any) -> float:
        """Seconds on the device between two marks, once it has passed both."""

    def time(self, work: Callable[[], None]) -> float:
        """Seconds that `work` takes on the device."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record the launches of `work` once; the result replays them with one call."""

    def annotate(self, name: str) -> AbstractContextManager[Any]:
        """A range in which a profiler shows the work that is submitted, under that name."""


def refuse_tile(array: Any, box: tuple[int, int]) -> None:
    """Raise LadderError where TMA, with its swizzle of 128 bytes, cannot copy such tiles."""
    size = array.dtype.itemsize
    if box[1] * size != 128 or not 0 < box[0] <= 256 or array.shape[-1] * size % 16:
        raise LadderError(
            f"TMA cannot copy tiles of {box[0]} x {box[1]} from {array.dtype} {array.shape}: a "
            "tile has 1 to 256 rows of 128 bytes, and a row of the array a multiple of 16 bytes"
        )
