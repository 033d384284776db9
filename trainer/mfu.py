"""How much of the machine a step uses: model FLOPs utilisation (MFU)."""

from __future__ import annotations

import math
import statistics

import numpy as np

from ladder.device import Device
from reference.gpt2 import GPT2Config


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
    """FLOP/s of a large matrix product on the device: NumPy's in float32, or on a GPU CuPy's.

    bfloat16 is measured as float16, which runs at the same rate wherever there is bfloat16.
    """
    if device.kind == "cuda":
        import cupy

        size, dtype = 8192, np.float32 if real.itemsize == 4 else np.float16
        a = cupy.ones((size, size), dtype)
        out = cupy.empty_like(a)
        product = lambda: cupy.matmul(a, a, out=out)  # noqa: E731
    else:
        size = 1024
        a = np.ones((size, size), np.float32)
        out = np.empty_like(a)
        product = lambda: np.matmul(a, a, out=out)  # noqa: E731
    product()  # the first one starts threads, or loads the library
    return 2 * size**3 / statistics.median(device.time(product) for _ in range(9))
