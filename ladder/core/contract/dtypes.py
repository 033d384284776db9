"""The number types of a run: `real` in a contract or a kernel stands for one of them."""

import ml_dtypes
import numpy as np

REAL = "real"  # stands for the run's dtype: a key of DTYPES (float64 in reference checks only)
REALS = ("float32", "float16", "bfloat16")  # those that kernels have
SHORT = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}  # as people write them
DTYPES = {
    "float64": np.dtype(np.float64),
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


def resolve_dtype(declared: str, real: np.dtype) -> np.dtype:
    """The NumPy dtype of an argument declared as `declared` in a run whose real type is `real`.

    "real" becomes `real`. "float32" (statistics, losses, weight gradients) stays float32 when
    `real` is a narrower type, and widens to float64 when the whole run is in float64.
    """
    real = np.dtype(real)
    if declared == REAL:
        return real
    if declared == "float32" and real == np.float64:
        return real
    return np.dtype(declared)
