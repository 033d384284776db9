"""NVIDIA's libraries on one GPU, through ctypes: a matrix product of cuBLAS's and a linear layer of
cuBLASLt's, on a device's stream, so that a CUDA graph can record them.

CuPy's own binding refuses every call during a capture, and leaves the workspace to cuBLAS, which
may then allocate inside a graph. Here the stream and the workspace are set once, with the handle,
of which each stream has one.
https://docs.nvidia.com/cuda/cublas/#cublasgemmex

cublasGemmEx can only add a product to the old content of the result. cuBLASLt's kernels also add a
bias to every row and apply gelu while the accumulators are in registers. The library describes a
product in objects of its own. It is asked once per shape which kernel computes it, so that a call
does little on the host and can be recorded in a CUDA graph.
https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api; the numbers are those of cublasLt.h,
which CUDA 12 and 13 have in common.
"""

import ctypes
import functools
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.common.install import install
from ladder.core.device.cupy import blas
from ladder.core.device.cupy.protocol import Gpu

DATA_TYPES = {"float32": 0, "float16": 2, "bfloat16": 14}
OPERATIONS = {"N": 0, "T": 1}  # a factor as it is, transposed
COMPUTE_32F = 68  # accumulates in float32; float32 factors are not rounded to TF32
COMPUTE_32F_FAST_TF32 = 77  # accumulates in float32; float32 factors are multiplied as TF32
DEFAULT_ALGORITHM = -1
DISALLOW_REDUCED_PRECISION_REDUCTION = 16  # split-K partial sums are added in float32, too


class CuBlas(blas.Multiplier):
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
        size = ctypes.c_size_t(blas.WORKSPACE_BYTES)
        yield self._library.cublasSetWorkspace_v2(handle, workspace, size)
        yield self._library.cublasSetMathMode(handle, DISALLOW_REDUCED_PRECISION_REDUCTION)

    def multiply(self, handle: ctypes.c_void_p, *arguments: Any) -> int:
        gemm = self._library.cublasGemmEx
        return int(gemm(handle, *arguments, self._compute, DEFAULT_ALGORITHM))


def load(name: str = "libcublas") -> Any:
    """The libcublas that CuPy works with, or the libcublasLt that comes with it."""
    try:
        importlib.import_module("cupy_backends.cuda.libs.cublas")  # loads it, wherever it is
        from cupy.cuda import runtime

        return ctypes.CDLL(f"{name}.so.{runtime.runtimeGetVersion() // 1000}")
    except (ImportError, OSError) as error:
        raise LadderError(
            f"cuBLAS does not load ({error}): {install('cuda13')} ([cuda12] for an older driver)"
        ) from None


# ---- cuBLASLt ----

# cublasLtMatmulDescAttributes_t
TRANSA, TRANSB, EPILOGUE, BIAS_POINTER, AUX_POINTER, AUX_LD = 3, 4, 7, 8, 11, 12
# cublasLtEpilogue_t: nothing; a bias; a bias, then gelu in its tanh form, with its input kept
NOTHING, BIAS, GELU_AUX_BIAS = 1, 4, 32 | 128 | 4
# cublasLtMatmulPreferenceAttributes_t
MAX_WORKSPACE_BYTES, REDUCTION_SCHEME_MASK, MIN_ALIGNMENTS = 1, 3, (5, 6, 7, 8)  # of A, B, C, D
REDUCTION_IN_COMPUTE_TYPE = 2  # split-K partial sums are added in float32, too
NOT_SUPPORTED = 15  # a status

ALIGNMENT = 16  # bytes, of all arrays that are handed in


class _Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t"""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace_bytes", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


@dataclass(frozen=True)
class _Plan:
    """The library's objects for products of one shape, and the algorithm that it would take."""

    operation: ctypes.c_void_p
    weight: ctypes.c_void_p  # the layout of each matrix
    inp: ctypes.c_void_p
    out: ctypes.c_void_p
    algorithm: Any


class Linear:
    """The linear layers of a GPU, in one kernel each, with bias and gelu in its epilogue. Addresses
    and row lengths are multiples of 16 bytes.

    cuBLASLt stores matrices by columns, so it reads our (rows, columns) as (columns, rows). It
    computes out.T (OC, N) = weight @ inp.T from what it reads as weight.T and inp.T: "T", "N".
    """

    def __init__(self, device: Gpu, compute: int = COMPUTE_32F) -> None:
        """Raises LadderError where there is no cuBLASLt."""
        self._device, self._library, self._compute = device, load("libcublasLt"), compute
        self._plan = functools.cache(self._find_algorithm)
        self._workspaces = blas.PerStream(device, functools.partial(blas.make_workspace, device))
        self._workspaces.current()
        self._handle = ctypes.c_void_p()
        with device.device:
            self._check(self._library.cublasLtCreate(ctypes.byref(self._handle)))

    def __call__(
        self, out: Any, inp: Any, weight: Any, bias: Any | None, pre: Any | None = None
    ) -> None:
        """out (N, OC) = inp (N, C) @ weight.T + bias (OC).

        pre  (N, OC): gets that result, and out its gelu in the tanh form; wants a bias

        Raises LadderError where the library has no kernel for it.
        """
        (N, OC), C, real = out.shape, inp.shape[1], out.dtype
        where = f"in {real.name} at N={N} C={C} OC={OC}"
        plan = self._plan(real.name, N, C, OC, _epilogue(bias is not None, pre is not None))
        if plan is None:
            raise LadderError(f"{self._device.name}: cuBLASLt has no kernel for this {where}")
        for attribute, array in ((BIAS_POINTER, bias), (AUX_POINTER, pre)):
            if array is not None:
                self._set(plan.operation, attribute, _address(array))
        status = self._library.cublasLtMatmul(
            self._handle,
            plan.operation,
            ctypes.byref(blas.ONE),
            _address(weight),
            plan.weight,
            _address(inp),
            plan.inp,
            ctypes.byref(blas.ZERO),
            _address(out),  # C, which is not read
            plan.out,
            _address(out),  # D
            plan.out,
            ctypes.byref(plan.algorithm),
            _address(self._workspaces.current()),
            ctypes.c_size_t(blas.WORKSPACE_BYTES),
            ctypes.c_void_p(self._device.stream.ptr),
        )
        self._check(status, where)

    def ask(self, real: np.dtype, N: int, C: int, OC: int, bias: bool, gelu: bool = False) -> bool:
        """Whether the library has a kernel. What it says is kept: calls need not ask again."""
        return self._plan(np.dtype(real).name, N, C, OC, _epilogue(bias, gelu)) is not None

    def _find_algorithm(self, real: str, N: int, C: int, OC: int, epilogue: int) -> _Plan | None:
        """Describe a product and ask how to compute it; None where the library cannot."""
        library, operation = self._library, ctypes.c_void_p()
        self._check(
            library.cublasLtMatmulDescCreate(
                ctypes.byref(operation), self._compute, DATA_TYPES["float32"]
            )
        )
        self._set(operation, TRANSA, ctypes.c_int32(OPERATIONS["T"]))
        self._set(operation, TRANSB, ctypes.c_int32(OPERATIONS["N"]))
        self._set(operation, EPILOGUE, ctypes.c_uint32(epilogue))
        # The alignment of these two is taken from an address: one that has no more than promised.
        example = ctypes.c_void_p(self._workspaces.current().data.ptr + ALIGNMENT)
        if epilogue != NOTHING:
            self._set(operation, BIAS_POINTER, example)
        if epilogue == GELU_AUX_BIAS:
            self._set(operation, AUX_POINTER, example)
            self._set(operation, AUX_LD, ctypes.c_int64(OC))
        weight, inp = self._layout(real, C, OC), self._layout(real, C, N)
        out = self._layout(real, OC, N)
        choice, count = _Heuristic(), ctypes.c_int()
        status = library.cublasLtMatmulAlgoGetHeuristic(
            self._handle,
            operation,
            weight,
            inp,
            out,
            out,
            self._preference,
            1,
            ctypes.byref(choice),
            ctypes.byref(count),
        )
        if status != NOT_SUPPORTED:
            self._check(status, "when asked for an algorithm")
        if status or not count.value or choice.status:
            return None
        return _Plan(operation, weight, inp, out, choice.algorithm)

    @functools.cached_property
    def _preference(self) -> ctypes.c_void_p:
        """What every algorithm must keep to."""
        preference = ctypes.c_void_p()
        self._check(self._library.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)))
        values = {
            MAX_WORKSPACE_BYTES: ctypes.c_uint64(blas.WORKSPACE_BYTES),
            REDUCTION_SCHEME_MASK: ctypes.c_uint32(REDUCTION_IN_COMPUTE_TYPE),
            **{matrix: ctypes.c_uint32(ALIGNMENT) for matrix in MIN_ALIGNMENTS},
        }
        for attribute, value in values.items():
            set_attribute = self._library.cublasLtMatmulPreferenceSetAttribute
            self._check(set_attribute(preference, attribute, *_value(value)))
        return preference

    def _layout(self, real: str, rows: int, columns: int) -> ctypes.c_void_p:
        """A matrix (rows, columns), as the library sees it, without gaps between its columns."""
        layout = ctypes.c_void_p()
        sizes = ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows)
        create = self._library.cublasLtMatrixLayoutCreate
        self._check(create(ctypes.byref(layout), DATA_TYPES[real], *sizes))
        return layout

    def _set(self, operation: ctypes.c_void_p, attribute: int, value: Any) -> None:
        set_attribute = self._library.cublasLtMatmulDescSetAttribute
        self._check(set_attribute(operation, attribute, *_value(value)))

    def _check(self, status: int, where: str = "at its start") -> None:
        blas.check(status, self._device, where, "cuBLASLt")


def _epilogue(bias: bool, gelu: bool) -> int:
    return GELU_AUX_BIAS if gelu else BIAS if bias else NOTHING


def _address(array: Any) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.data.ptr)


def _value(value: Any) -> tuple[Any, ctypes.c_size_t]:
    """An attribute's value as the library reads it: an address and a number of bytes."""
    return ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value))
