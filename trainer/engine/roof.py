"""The roof: the measured rate of a matrix product, which the speed of a step is a share of."""

import functools
import time

import numpy as np

from ladder.core.contract.device import Device
from ladder.core.measure.roofline import matrix_rate

PRODUCTS, SECONDS = 9, 0.1  # that NumPy's rate is the best of, or fewer if they take longer


def measured_roof(device: Device, real: np.dtype, tf32: bool = False) -> float:
    """FLOP/s of a large matrix product on the device: cuBLAS's in the run's type on a GPU, NumPy's
    in float32 on a CPU, whatever the run's type, since the reference computes in float32.

    tf32  the run multiplies as TF32
    """
    if (rate := matrix_rate(device, real, tf32)) is not None:
        return rate
    return _numpys_rate()


@functools.cache  # of one process: the runs of a sweep and of the tests share it
def _numpys_rate() -> float:
    n = 1024
    a = np.ones((n, n), np.float32)
    out = np.empty_like(a)
    times: list[float] = []
    np.matmul(a, a, out=out)  # the first one starts the threads
    while len(times) < PRODUCTS and sum(times) < SECONDS:
        start = time.perf_counter()
        np.matmul(a, a, out=out)
        times.append(time.perf_counter() - start)
    return 2 * n**3 / min(times)  # other programs can only slow it down
