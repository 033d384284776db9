"""The rate that model FLOPs utilisation (MFU) is a share of."""

from __future__ import annotations

import numpy as np

from ladder.contract.device import Device
from ladder.measure.roofline import matrix_rate


def measured_roof(device: Device, real: np.dtype, tf32: bool = False) -> float:
    """FLOP/s of a large matrix product on the device: cuBLAS's in the run's type on a GPU, NumPy's
    in float32 on a CPU, whatever the run's type, since the reference computes in float32.

    tf32  the run multiplies as TF32
    """
    if (rate := matrix_rate(device, real, tf32)) is not None:
        return rate
    n = 1024
    a = np.ones((n, n), np.float32)
    out = np.empty_like(a)

    def multiply() -> None:
        np.matmul(a, a, out=out)

    multiply()  # the first one starts the threads
    times = [device.time(multiply) for _ in range(9)]
    return 2 * n**3 / min(times)  # other programs can only slow it down
