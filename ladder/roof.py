"""What a device can do at most, measured on the spot: bytes copied and products per second.

No op can be faster than its floor, max(bytes / bandwidth, flops / matrix rate) (Williams, Waterman
and Patterson, Roofline, CACM 52(4), 2009). Data sheets promise more than any program gets, so the
roof here is what a plain copy and a plain cuBLAS product reach on the same card on the same day.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np

from ladder.contract import Dims, Op
from ladder.device import Device
from ladder.timing import ROTATED_BYTES, measure

COPY_BYTES = 2 * ROTATED_BYTES
MATRIX = 4096  # rows and columns; larger products make a card lower its clocks
COMPUTE_BOUND = 32  # FLOPs per byte from which the matrix rate is worth measuring

# A kernel may beat the roof by this part of it before it counts as a mistake in measuring: noise,
# and kernels that read more than they write, since turning from reads to writes costs a memory
# time and a copy does so most often.
ALLOWANCE = 0.05


@dataclass(frozen=True)
class Roof:
    """Bytes per second of a copy, read and written; FLOPs per second, or None if not measured."""

    bandwidth: float
    matrix_rate: float | None = None

    def floor(self, op: Op, dims: Dims, real: np.dtype) -> float:
        """Seconds that the op takes at least."""
        least = op.least_bytes(dims, real) / self.bandwidth
        return max(least, op.flops(dims) / self.matrix_rate) if self.matrix_rate else least


def compute_bound(op: Op, dims: Dims, real: np.dtype) -> bool:
    return op.flops(dims) > COMPUTE_BOUND * op.least_bytes(dims, real)


def copy_bandwidth(device: Device, size: int = COPY_BYTES) -> float:
    """Bytes read and written per second by copies between arrays of `size` bytes."""
    arrays = [device.empty((size,), np.dtype(np.uint8)) for _ in range(3)]
    for array in arrays:
        with on_stream(device):
            array[...] = 1
    pairs = [(arrays[0], arrays[1]), (arrays[1], arrays[2]), (arrays[2], arrays[0])]

    def copy(target, source):
        def call() -> None:
            with on_stream(device):
                target[...] = source

        return call

    return 2 * size / measure(device, [copy(*pair) for pair in pairs]).median


def matrix_rate(device: Device, real: np.dtype) -> float | None:
    """FLOPs per second of a square cuBLAS product that accumulates in float32, without TF32.

    None on a device without cuBLAS.
    """
    if device.kind != "cuda":
        return None
    from cupy_backends.cuda.libs import cublas

    cupy, n = device.cupy, MATRIX
    code = {"float32": 0, "float16": 2, "bfloat16": 14}[np.dtype(real).name]  # cudaDataType
    rng = np.random.default_rng(0)
    a, b, c = (device.empty((n, n), real) for _ in range(3))
    for array in (a, b):
        device.upload(array, rng.standard_normal((n, n), np.float32))
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)

    def call() -> None:
        with on_stream(device):
            cublas.gemmEx(
                cupy.cuda.device.get_cublas_handle(), cublas.CUBLAS_OP_N, cublas.CUBLAS_OP_N,
                n, n, n, one.ctypes.data, a.data.ptr, code, n, b.data.ptr, code, n,
                zero.ctypes.data, c.data.ptr, code, n,
                cublas.CUBLAS_COMPUTE_32F, cublas.CUBLAS_GEMM_DEFAULT,
            )  # fmt: skip

    return 2 * n**3 / measure(device, [call]).median


@contextlib.contextmanager
def on_stream(device: Device):
    """Array operations inside run on the device's own stream."""
    if device.kind != "cuda":
        yield
        return
    with device.device, device.stream:
        yield
