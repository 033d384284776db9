"""cuBLAS through ctypes: one matrix product, on a device's stream, that a CUDA graph can record.

CuPy's own binding refuses every call during a capture, and leaves the workspace to cuBLAS, which
may then allocate inside a graph. Here the stream and the workspace are set once, with the handle,
of which each stream has one.
https://docs.nvidia.com/cuda/cublas/#cublasgemmex
"""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

from ladder.core.common.errors import LadderError
from ladder.core.common.install import install
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

DATA_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}
OPERATIONS = {"N": 0, "T": 1}  # a factor as it is, transposed
COMPUTE_32F = 68  # accumulates in float32; float32 factors are not rounded to TF32
COMPUTE_32F_FAST_TF32 = 77  # accumulates in float32; float32 factors are multiplied as TF32
DEFAULT_ALGORITHM = -1
DISALLOW_REDUCED_PRECISION_REDUCTION = 16  # split-K partial sums are added in float32, too


class Multiplier:
    """A GPU's matrix products, on the stream that work goes to (`MatrixProduct` of
    ladder/core/contract/libraries.py)."""

    def __init__(self, device: Gpu, compute: int = COMPUTE_32F) -> None:
        """Raises LadderError where there is no cuBLAS."""
        self._device, self._library, self._compute = device, load(), compute
        self._handles = PerStream(device, self._open)
        self._handles.current()

    def _open(self) -> tuple[ctypes.c_void_p, Any]:
        """A handle for the stream that work goes to, and the memory that it uses while it lives."""
        handle, workspace = ctypes.c_void_p(), make_workspace(self._device)
        with self._device.device:
            self._check(self._library.cublasCreate_v2(ctypes.byref(handle)))
        stream = ctypes.c_void_p(self._device.stream.ptr)
        self._check(self._library.cublasSetStream_v2(handle, stream))
        address, size = ctypes.c_void_p(workspace.data.ptr), ctypes.c_size_t(WORKSPACE_BYTES)
        # After the stream: setting that takes the workspace away again.
        self._check(self._library.cublasSetWorkspace_v2(handle, address, size))
        mode = DISALLOW_REDUCED_PRECISION_REDUCTION
        self._check(self._library.cublasSetMathMode(handle, mode))
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
        """result = a @ b, or added to it; `operations` and `sizes` as cuBLAS sees them."""
        handle, _ = self._handles.current()
        status = self._library.cublasGemmEx(
            handle,
            *(OPERATIONS[letter] for letter in operations),
            *sizes,
            ctypes.byref(ONE),
            *matrix(a, DATA_TYPES),
            *matrix(b, DATA_TYPES),
            ctypes.byref(ONE if add else ZERO),
            *matrix(result, DATA_TYPES),
            self._compute,
            DEFAULT_ALGORITHM,
        )
        self._check(status, f"in a product of sizes {sizes}")

    def _check(self, status: int, where: str = "at its start") -> None:
        check(status, self._device, where, "cuBLAS")


def load(name: str = "libcublas") -> Any:
    """The libcublas that CuPy works with, or the libcublasLt that comes with it."""
    try:
        importlib.import_module(
            "cupy_backends.cuda.libs.cublas"
        )  # loads it, wherever it is installed
        from cupy.cuda import runtime

        return ctypes.CDLL(f"{name}.so.{runtime.runtimeGetVersion() // 1000}")
    except (ImportError, OSError) as error:
        raise LadderError(
            f"cuBLAS does not load ({error}): {install('cuda13')} brings it, or "
            "'.[cuda12]' for an older driver"
        ) from None
