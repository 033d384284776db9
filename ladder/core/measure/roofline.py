"""The roof of a device, measured: bytes of a copy and FLOPs of a matrix product per second.

No op can be faster than its floor, max(bytes / bandwidth, flops / matrix rate) (Williams, Waterman
and Patterson, Roofline, CACM 52(4), 2009). Data sheets state more than any program reaches, so
the roof here is what a plain copy and the vendor library's plain product (cuBLAS) reach on the same
card on that day.
"""

import functools
import timeit
from dataclasses import dataclass

import numpy as np

from ladder.core.contract.device import Device
from ladder.core.contract.op import Dims, Op
from ladder.core.measure.timing import ROTATED_BYTES, measure

COPY_BYTES = 4 * ROTATED_BYTES
CPU_COPY_BYTES = 1 << 26  # beyond its caches, and quickly copied
COPIES = 10  # of each turn; the median ignores the first ones, made at low clocks
PRODUCTS = 7  # that NumPy's rate is the best of
MATRIX = 4096  # rows and columns; larger products make a card lower its clocks
COMPUTE_BOUND = 32  # FLOPs per byte from which the matrix rate is worth measuring

# By this share a kernel's time may lie below the floor before it counts as a mistake in measuring.
# Switching between reads and writes costs DRAM time, and a copy switches most often: on an H200 it
# reaches 4.2 of the data sheet's 4.8 TB/s. A kernel that only writes comes nearer to these.
ALLOWANCE = 0.12


@dataclass(frozen=True)
class Roof:
    """Bytes per second of a copy, read and written; FLOPs per second, or None if not measured.

    tf32_rate  FLOPs per second on float32 that is multiplied as TF32
    """

    bandwidth: float
    matrix_rate: float | None = None
    tf32_rate: float | None = None

    def floor(self, op: Op, dims: Dims, real: np.dtype, tf32: bool = False) -> float:
        """Seconds that the op takes at least; 0 for a user's own: it may not read all."""
        if op.own:
            return 0.0
        least, rate = op.least_bytes(dims, real) / self.bandwidth, self.matrix_rate
        if tf32:
            rate = self.tf32_rate
        return max(least, op.flops(dims) / rate) if rate else least


def compute_bound(op: Op, dims: Dims, real: np.dtype) -> bool:
    return op.flops(dims) > COMPUTE_BOUND * op.least_bytes(dims, real)


def copy_bandwidth(device: Device, size: int = 0) -> float:
    """Bytes read and written per second by copies between arrays of `size` bytes; 0: enough."""
    size = size or (COPY_BYTES if device.is_gpu else CPU_COPY_BYTES)
    arrays = [device.empty((size,), np.dtype(np.uint8)) for _ in range(3)]
    for array in arrays:
        device.upload(array, np.ones(size, np.uint8))

    turns = [functools.partial(device.copy, arrays[i], arrays[(i + 1) % 3]) for i in range(3)]
    # Not captured into a graph as kernels are: there the driver may leave a copy to an engine of
    # its own, which is slower than the SMs.
    seconds = [device.time(turn) for _ in range(COPIES) for turn in turns]
    return 2 * size / float(np.median(seconds))


def matrix_rate(device: Device, real: np.dtype, tf32: bool = False) -> float | None:
    """FLOPs per second of a large square product by the vendor's library, which accumulates in
    float32, with or without TF32. None on a device without such a library."""
    multiply = device.matrix_product(tf32)
    if multiply is None:
        return None
    n = MATRIX
    a, b, c = (device.empty((n, n), real) for _ in range(3))
    drawn = np.random.default_rng(0).standard_normal((n, n), np.float32).astype(real)
    for array in (a, b):
        device.upload(array, drawn)
    return 2 * n**3 / measure(device, [lambda: multiply("NN", (n, n, n), a, b, c)]).median


def measured_roof(device: Device, real: np.dtype, tf32: bool = False) -> float:
    """FLOP/s of a large matrix product on the device: cuBLAS's in the run's type on a GPU, NumPy's
    in float32 on a CPU, whatever the run's type, since the reference computes in float32.

    tf32  the run multiplies as TF32
    """
    return matrix_rate(device, real, tf32) or _numpys_rate()


@functools.cache  # of one process: the runs of a sweep and of the tests share it
def _numpys_rate() -> float:
    n = 1024
    a = np.ones((n, n), np.float32)
    out = np.empty_like(a)
    times = timeit.repeat(lambda: np.matmul(a, a, out=out), number=1, repeat=PRODUCTS)
    return 2 * n**3 / min(times)  # the first one starts threads; other programs can only slow it
