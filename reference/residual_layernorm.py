"""Residual and LayerNorm in one: a branch joins the stream, and the sum is normalised on the way.

    residual = inp1 + inp2        out = LayerNorm(residual)

Backward, the gradient that reaches the sum through the norm joins what the stream brings along:

    dinp += LayerNorm's gradient of dout

What is normalised is `residual` as it is stored, rounded, for that is what backward reads.
"""

import numpy as np

from reference import layernorm


def forward(
    residual: np.ndarray,
    out: np.ndarray,
    mean: np.ndarray,
    rstd: np.ndarray,
    inp1: np.ndarray,
    inp2: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    real: np.dtype | None = None,
) -> None:
    """residual and out (N, C), mean and rstd (N) from inp1, inp2 (N, C), weight and bias (C);
    `real`: what residual will be stored in, if that is narrower than the array."""
    np.add(inp1, inp2, out=residual)
    if real is not None:
        residual[...] = residual.astype(real)
    layernorm.forward(out, mean, rstd, residual, weight, bias)


def backward(
    dinp: np.ndarray,
    dweight: np.ndarray,
    dbias: np.ndarray,
    dout: np.ndarray,
    inp: np.ndarray,
    weight: np.ndarray,
    mean: np.ndarray,
    rstd: np.ndarray,
) -> None:
    """dinp (N, C), dweight (C) and dbias (C) accumulate. dout and inp, the sum, are (N, C)."""
    through = np.empty_like(dinp)  # (N, C): the gradient that comes through the norm
    layernorm.backward(through, dweight, dbias, dout, inp, weight, mean, rstd)
    dinp += through
