"""cuBLAS through ctypes: one matrix product, on a device's stream, that a CUDA graph can record.

CuPy's own binding refuses every call during a capture, and leaves the workspace to cuBLAS, which
may then allocate inside a graph. Here the stream and the workspace are set once, with the handle.
https://docs.nvidia.com/cuda/cublas/#cublasgemmex
"""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

import numpy as np

from ladder.common.errors import LadderError
from ladder.device.cupy.blas import ONE, WORKSPACE_BYTES, ZERO, Gpu, check, matrix

DATA_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}
OPERATIONS = {"N": 0, "T": 1}  # a factor as it is, transposed
COMPUTE_32F = 68  # accumulates in float32; float32 factors are not rounded to TF32
COMPUTE_32F_FAST_TF32 = 77  # accumulates in float32; float32 factors are multiplied as TF32
DEFAULT_ALGORITHM = -1
DISALLOW_REDUCED_PRECISION_REDUCTION = 16  # split-K partial sums are added in float32, too


class Multiplier:
    """A GPU's matrix products, on its stream (`MatrixProduct` of ladder/contract/device.py)."""

    def __init__(self, device: Gpu, compute: int = COMPUTE_32F) -> None:
        """Raises LadderError where there is no cuBLAS."""
        self._device, self._library, self._compute = device, load(), compute
        self._handle = ctypes.c_void_p()
        # The handle uses this memory as long as it lives.
        self._workspace = device.empty((WORKSPACE_BYTES,), np.dtype(np.uint8))
        with device.device:
            self._check(self._library.cublasCreate_v2(ctypes.byref(self._handle)))
        stream = ctypes.c_void_p(device.stream.ptr)
        self._check(self._library.cublasSetStream_v2(self._handle, stream))
        address = ctypes.c_void_p(self._workspace.data.ptr)
        size = ctypes.c_size_t(WORKSPACE_BYTES)
        self._check(self._library.cublasSetWorkspace_v2(self._handle, address, size))
        mode = DISALLOW_REDUCED_PRECISION_REDUCTION
        self._check(self._library.cublasSetMathMode(self._handle, mode))

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
        status = self._library.cublasGemmEx(
            self._handle,
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
            f"cuBLAS does not load ({error}): pip install -e '.[cuda13]' brings it, or "
            "'.[cuda12]' for an older driver"
        ) from None
