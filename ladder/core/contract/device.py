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

from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract.launch_plan import Launch
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


class MatrixProduct(Protocol):
    """The vendor library's product of two matrices, on one device and its stream."""

    def __call__(
        self,
        operations: str,
        sizes: tuple[int, int, int],
        a: Any,
        b: Any,
        result: Any,
        add: bool = False,
    ) -> None:
        """result = a @ b, accumulated in float32, with the factors transposed as `operations` says.

        operations  two letters, "N" as it is or "T" transposed: what is done to a and to b, as the
                    library sees them
        sizes       m, n, k: rows, columns and terms of the product, as the library sees it: it
                    stores matrices by columns, so that our (rows, columns) is its (columns, rows)
        add         to the result's old content
        """


class LinearLayer(Protocol):
    """The vendor library's linear layer in one kernel, with bias and gelu in its epilogue."""

    def __call__(
        self, out: Any, inp: Any, weight: Any, bias: Any | None, pre: Any | None = None
    ) -> None:
        """out (N, OC) = inp (N, C) @ weight.T + bias (OC), in one kernel.

        pre  (N, OC): gets that result, and out its gelu in the tanh form; wants a bias

        Raises LadderError where the library has no kernel for it.
        """

    def ask(self, real: np.dtype, N: int, C: int, OC: int, bias: bool, gelu: bool = False) -> bool:
        """Whether the library has a kernel. What it says is kept: calls need not ask again."""


class GroupSum(Protocol):
    """The vendor library's all-reduce over the devices of a group, on the stream of each."""

    def __call__(self, out: Any, inp: Any) -> None:
        """Every row of out (R, N) = the sum over the rows of inp (R, N), a row on each device."""


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
    def bfloat16(self) -> bool:
        """Whether it multiplies matrices of bfloat16 in hardware."""

    @property
    def libraries(self) -> Set[str]:
        """The ids of the library rungs that it can run: {"cublas", "cublas-tf32", ...}."""

    @property
    def matrix_product(self) -> MatrixProduct | None:
        """Its library's product of two matrices (cuBLAS); None where it has none. Made when first
        asked for, which is not possible while a graph records. Raises LadderError where the
        library does not load."""

    @property
    def linear_layer(self) -> LinearLayer | None:
        """Its library's linear layer in one kernel (cuBLASLt), as above."""

    @property
    def tf32_product(self) -> MatrixProduct | None:
        """`matrix_product`, in which tensor cores multiply float32 factors as TF32."""

    @property
    def tf32_layer(self) -> LinearLayer | None:
        """`linear_layer`, in which tensor cores multiply float32 factors as TF32."""

    @property
    def group_sum(self) -> GroupSum | None:
        """Of a group of devices, their library's all-reduce (NCCL), as above; None otherwise."""

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

    def variants(
        self, brief: bool = False, multiprocessors: int | None = None
    ) -> Sequence[tuple[Device, ...]]:
        """The devices to check a rung on, in groups that must give the same bits.

        A GPU runs everything twice. The emulator also changes the order of threads and the width
        of a warp, and watches every memory access.

        brief            one run only
        multiprocessors  SMs of the emulator where it has few, if not as many as usual
        """

    def watching(self) -> Device | None:
        """The same device, so that it watches every memory access of a kernel and names the line
        that does what it must not. None where it cannot, or does so already."""

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

    # ---- other processes ----

    def new_group(self) -> bytes | None:
        """The name of a new group of processes, which one of them makes and all hand to
        `join_group`; None where the arrays are the host's, and the host exchanges them."""

    def join_group(self, name: bytes, rank: int, size: int) -> Communicator:
        """Join a group as rank `rank` of `size`, each on a device of its own, through the vendor's
        library (NCCL). Waits until all have. Raises LadderError where that is not possible."""

    def join_p2p(
        self,
        exchange: Callable[[str, bytes], Sequence[bytes]],
        rank: int,
        size: int,
        beside: bool,
    ) -> Communicator:
        """The same for the processes of one machine, by kernels that load and store in the memory
        of each other's devices. `exchange` hands bytes to all ranks and returns those of each, and
        is called with the same name by all; `beside`: arrays are exchanged while the device does
        other work. Raises LadderError, on all ranks, where one cannot reach another."""

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

    def beside(self, work: Callable[[], None], urgent: bool = False, behind: Any = None) -> Any:
        """Submit work that waits for all that was submitted before, and then goes on beside what is
        submitted later; works beside others go one after the other, the urgent ones and the rest.
        A device that does one thing at a time does it at once.

        urgent  where the device has room for one kernel, this work goes first
        behind  the end of other work beside others, for which it waits, too

        Returns a note of the work's end, for `join`.
        """

    def join(self, end: Any) -> None:
        """All that is submitted from here on waits for the work beside others that `end` is of."""

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
