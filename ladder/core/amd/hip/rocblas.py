"""rocBLAS through ctypes: one matrix product, on a device's stream, as a measuring stick.

Its interface has been the same since ROCm 4, while that of hipBLAS, which calls it, has changed.
https://rocm.docs.amd.com/projects/rocBLAS/en/latest/reference/level-3-gemm.html
"""

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ladder.core.common.errors import LadderError
from ladder.core.device.cupy.blas import WORKSPACE_BYTES, Multiplier
from ladder.core.device.cupy.protocol import Gpu

DATA_TYPES = {"float16": 150, "float32": 151, "bfloat16": 168}  # rocblas_datatype
OPERATIONS = {"N": 111, "T": 112}  # rocblas_operation: a factor as it is, transposed
STANDARD = 0  # rocblas_gemm_algo
INSTALLED, SONAME = Path("/opt/rocm/lib/librocblas.so.5"), "librocblas.so.5"  # of ROCm 7


class RocBlas(Multiplier):
    """rocBLAS."""

    title, types, operations = "rocBLAS", DATA_TYPES, OPERATIONS

    def __init__(self, gpu: Gpu) -> None:
        """Raises LadderError where there is no rocBLAS."""
        self._library = load()
        super().__init__(gpu)

    def create(self, handle: ctypes.c_void_p) -> int:
        return int(self._library.rocblas_create_handle(ctypes.byref(handle)))

    def set_up(
        self, handle: ctypes.c_void_p, stream: ctypes.c_void_p, workspace: ctypes.c_void_p
    ) -> Iterator[int]:
        yield self._library.rocblas_set_stream(handle, stream)
        size = ctypes.c_size_t(WORKSPACE_BYTES)
        yield self._library.rocblas_set_workspace(handle, workspace, size)

    def multiply(self, handle: ctypes.c_void_p, *arguments: Any) -> int:
        *_, address, kind, length = arguments  # what is added to, and again: what is written
        accumulator, solution, flags = DATA_TYPES["float32"], 0, 0  # it chooses the solution
        written = address, kind, length, accumulator, STANDARD, solution, flags
        return int(self._library.rocblas_gemm_ex(handle, *arguments, *written))


def load() -> Any:
    """The librocblas of this machine."""
    name = str(INSTALLED) if INSTALLED.exists() else SONAME
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise LadderError(
            f"rocBLAS does not load ({error}): install ROCm 7, which has it"
        ) from None
