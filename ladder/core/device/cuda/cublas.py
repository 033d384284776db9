"""cuBLAS through ctypes: one matrix product, on a device's stream, that a CUDA graph can record.

CuPy's own binding refuses every call during a capture, and leaves the workspace to cuBLAS, which
may then allocate inside a graph. Here the stream and the workspace are set once, with the handle,
of which each stream has one.
https://docs.nvidia.com/cuda/cublas/#cublasgemmex
"""

import ctypes
import importlib
from collections.abc import Iterator
from typing import Any

from ladder.core.common.errors import LadderError
from ladder.core.common.install import install
from ladder.core.device.cupy.blas import WORKSPACE_BYTES, Multiplier
from ladder.core.device.cupy.protocol import Gpu

DATA_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}
OPERATIONS = {"N": 0, "T": 1}  # a factor as it is, transposed
COMPUTE_32F = 68  # accumulates in float32; float32 factors are not rounded to TF32
COMPUTE_32F_FAST_TF32 = 77  # accumulates in float32; float32 factors are multiplied as TF32
DEFAULT_ALGORITHM = -1
DISALLOW_REDUCED_PRECISION_REDUCTION = 16  # split-K partial sums are added in float32, too


class CuBlas(Multiplier):
    """cuBLAS; `compute` says how it multiplies."""

    title, types, operations = "cuBLAS", DATA_TYPES, OPERATIONS

    def __init__(self, gpu: Gpu, compute: int = COMPUTE_32F) -> None:
        """Raises LadderError where there is no cuBLAS."""
        self._library, self._compute = load(), compute
        super().__init__(gpu)

    def create(self, handle: ctypes.c_void_p) -> int:
        return int(self._library.cublasCreate_v2(ctypes.byref(handle)))

    def set_up(
        self, handle: ctypes.c_void_p, stream: ctypes.c_void_p, workspace: ctypes.c_void_p
    ) -> Iterator[int]:
        yield self._library.cublasSetStream_v2(handle, stream)
        # After the stream: setting that takes the workspace away again.
        size = ctypes.c_size_t(WORKSPACE_BYTES)
        yield self._library.cublasSetWorkspace_v2(handle, workspace, size)
        yield self._library.cublasSetMathMode(handle, DISALLOW_REDUCED_PRECISION_REDUCTION)

    def multiply(self, handle: ctypes.c_void_p, *arguments: Any) -> int:
        gemm = self._library.cublasGemmEx
        return int(gemm(handle, *arguments, self._compute, DEFAULT_ALGORITHM))


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
