"""Residual and LayerNorm in one: a branch joins the stream, and the sum is normalised on the way.

    residual = inp1 + inp2        out = LayerNorm(residual)

Backward, the gradient that reaches the sum through the norm joins what the stream brings along:

    dinp += LayerNorm's gradient of dout

What is normalised is `residual` as it is stored, rounded, for that is what backward reads.
"""

from collections.abc import Callable

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
    stored_residual: Callable[[np.ndarray], np.ndarray] = lambda residual: residual,
) -> None:
    """residual and out (N, C), mean and rstd (N) from inp1, inp2 (N, C), weight and bias (C);
    `stored_residual`: what residual is after it was stored in a narrower type."""
    np.add(inp1, inp2, out=residual)
    residual[...] = stored_residual(residual)
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
