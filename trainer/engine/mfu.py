"""How much of the machine a step uses: model FLOPs utilisation (MFU)."""

from __future__ import annotations

import math

import numpy as np

from ladder.contract.device import Device
from ladder.measure.roofline import matrix_rate
from trainer.model.gpt2 import GPT2Config


def flops_per_token(config: GPT2Config, T: int) -> int:
    """FLOPs that forward and backward of one token need: 6 N + 12 L C T.

    PaLM (Chowdhery et al. 2022), appendix B, and nanoGPT: 6 per parameter that takes part in a
    matrix product, position embeddings left out, and the attention over the full T x T square.
    What a causal attention saves, and what is computed again, does not count.
    """
    shapes = config.parameter_shapes()
    parameters = sum(math.prod(shape) for name, shape in shapes.items() if name != "wpe")
    return 6 * parameters + 12 * config.layers * config.channels * T


def measured_roof(device: Device, real: np.dtype) -> float:
    """FLOP/s of a large matrix product on the device: cuBLAS's in the run's type on a GPU, NumPy's
    in float32 on a CPU, whatever the run's type, since the reference computes in float32."""
    if (rate := matrix_rate(device, real)) is not None:
        return rate
    n = 1024
    a = np.ones((n, n), np.float32)
    out = np.empty_like(a)
    np.matmul(a, a, out=out)  # the first one starts the threads
    times = [device.time(lambda: np.matmul(a, a, out=out)) for _ in range(9)]
    return 2 * n**3 / min(times)  # other programs can only make it look lower than it is
