"""rocBLAS through ctypes: one matrix product, on a device's stream, as a measuring stick.

Its interface has been the same since ROCm 4, while that of hipBLAS, which calls it, has changed.
https://rocm.docs.amd.com/projects/rocBLAS/en/latest/reference/level-3-gemm.html
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

from ladder.core.common.errors import LadderError
from ladder.core.contract.libraries import Libraries
from ladder.core.device.cupy.blas import (
    ONE,
    WORKSPACE_BYTES,
    ZERO,
    Gpu,
    PerStream,
    check,
    make_workspace,
    matrix,
)

DATA_TYPES = {"float16": 150, "float32": 151, "bfloat16": 168}  # rocblas_datatype
OPERATIONS = {"N": 111, "T": 112}  # rocblas_operation: a factor as it is, transposed
STANDARD = 0  # rocblas_gemm_algo
INSTALLED, SONAME = Path("/opt/rocm/lib/librocblas.so.5"), "librocblas.so.5"  # of ROCm 7


class Multiplier:
    """A GPU's matrix products, on the stream that work goes to (`MatrixProduct` of
    ladder/core/contract/libraries.py)."""

    def __init__(self, device: Gpu) -> None:
        """Raises LadderError where there is no rocBLAS."""
        self._device, self._library = device, load()
        self._handles = PerStream(device, self._open)
        self._handles.current()

    def _open(self) -> tuple[ctypes.c_void_p, Any]:
        """A handle for the stream that work goes to, and the memory that it uses while it lives;
        its own would be allocated in a graph."""
        handle, workspace = ctypes.c_void_p(), make_workspace(self._device)
        with self._device.device:
            self._check(self._library.rocblas_create_handle(ctypes.byref(handle)))
        stream = ctypes.c_void_p(self._device.stream.ptr)
        self._check(self._library.rocblas_set_stream(handle, stream))
        address, size = ctypes.c_void_p(workspace.data.ptr), ctypes.c_size_t(WORKSPACE_BYTES)
        self._check(self._library.rocblas_set_workspace(handle, address, size))
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
        """result = a @ b, or added to it; `operations` and `sizes` as rocBLAS sees them."""
        handle, _ = self._handles.current()
        status = self._library.rocblas_gemm_ex(
            handle,
            *(OPERATIONS[letter] for letter in operations),
            *sizes,
            ctypes.byref(ONE),
            *matrix(a, DATA_TYPES),
            *matrix(b, DATA_TYPES),
            ctypes.byref(ONE if add else ZERO),
            *matrix(result, DATA_TYPES),
            *matrix(result, DATA_TYPES),  # what is added to, and what is written
            DATA_TYPES["float32"],  # accumulates in it
            STANDARD,
            0,  # the solution is rocBLAS's choice
            0,  # no flags
        )
        self._check(status, f"in a product of sizes {sizes}")

    def _check(self, status: int, where: str = "at its start") -> None:
        check(status, self._device, where, "rocBLAS")


class RocLibraries(Libraries):
    """rocBLAS on one GPU; it runs no rung, and has no TF32 here."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def matrix_product(self, tf32: bool = False) -> Multiplier | None:
        return None if tf32 else self._product

    @functools.cached_property
    def _product(self) -> Multiplier:
        return Multiplier(self._gpu)


def load() -> Any:
    """The librocblas of this machine."""
    name = str(INSTALLED) if INSTALLED.exists() else SONAME
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        raise LadderError(
            f"rocBLAS does not load ({error}): install ROCm 7, which has it"
        ) from None
