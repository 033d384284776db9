"""What the vendors' BLAS libraries have in common, called through ctypes on CuPy's arrays.

They store matrices by columns: our (rows, columns) is their (columns, rows).

A handle of theirs submits to one stream, and its kernels keep partial sums in its workspace. So
each stream that work goes to has a handle and a workspace of its own: what is submitted beside
other work would otherwise go behind it, or share its memory.
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.device.cupy.protocol import Gpu

WORKSPACE_BYTES = 32 << 20  # what NVIDIA recommends for Hopper

# Read when a call is made, not when the GPU gets to it.
ZERO, ONE = ctypes.c_float(0), ctypes.c_float(1)


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


def check(status: int, gpu: Gpu, where: str, library: str) -> None:
    """Raise LadderError where a call has failed."""
    if status:
        raise LadderError(f"{gpu.name}: {library} fails with status {status} {where}")


class Multiplier:
    """A GPU's matrix products, accumulated in float32, on the stream that work goes to. A subclass
    calls the vendor's library; its methods return the library's status.

    title       of the library, for messages
    types       its numbers for the types of matrices
    operations  and for what is done to a factor: "N" as it is, "T" transposed
    """

    title: str
    types: Mapping[str, int]
    operations: Mapping[str, int]

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._handles = PerStream(gpu, self._open)
        self._handles.current()

    def create(self, handle: ctypes.c_void_p) -> int:
        raise NotImplementedError

    def set_up(
        self, handle: ctypes.c_void_p, stream: ctypes.c_void_p, workspace: ctypes.c_void_p
    ) -> Iterator[int]:
        """Let a handle submit to a stream and use WORKSPACE_BYTES of memory; each call's status."""
        raise NotImplementedError

    def multiply(self, handle: ctypes.c_void_p, *arguments: Any) -> int:
        """arguments: those that the libraries' calls have in common, up to the result."""
        raise NotImplementedError

    def _open(self) -> tuple[ctypes.c_void_p, Any]:
        """A handle for the stream that work goes to, and the memory that it uses while it lives;
        its own would be allocated in a graph."""
        handle, workspace = ctypes.c_void_p(), make_workspace(self._gpu)
        with self._gpu.device:
            check(self.create(handle), self._gpu, "at its start", self.title)
        stream = ctypes.c_void_p(self._gpu.stream.ptr)
        for status in self.set_up(handle, stream, ctypes.c_void_p(workspace.data.ptr)):
            check(status, self._gpu, "at its start", self.title)
        return handle, workspace

    def __call__(
        self,
        operations: str,
        sizes: tuple[int, int, int],
        a: Any,
        b: Any,
        result: Any,
        add: bool = False,
    ) -> None:
        """result = a @ b, with the factors transposed as `operations` says.

        operations  two letters, "N" as it is or "T" transposed: what is done to a and to b, as the
                    library sees them
        sizes       m, n, k: rows, columns and terms of the product, as the library sees it: it
                    stores matrices by columns, so that our (rows, columns) is its (columns, rows)
        add         to the result's old content
        """
        handle, _ = self._handles.current()
        status = self.multiply(
            handle,
            *(self.operations[letter] for letter in operations),
            *sizes,
            ctypes.byref(ONE),
            *matrix(a, self.types),
            *matrix(b, self.types),
            ctypes.byref(ONE if add else ZERO),
            *matrix(result, self.types),
        )
        check(status, self._gpu, f"in a product of sizes {sizes}", self.title)
