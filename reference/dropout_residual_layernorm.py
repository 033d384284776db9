"""Dropout, residual and LayerNorm in one: a branch is dropped as it joins the stream.

    residual = inp1 + dropout(inp2)        out = LayerNorm(residual)

Backward, the gradient of the stream takes up what comes through the norm, and the branch gets it
under the mask of the forward pass, drawn again:

    dinp += LayerNorm's gradient of dout        dbranch = dropout's gradient of dinp

What is normalised is `residual` as it is stored, and what the branch gets is `dinp` as it is
stored, as where each op is a kernel of its own. For p, stream and rng see dropout.py.
"""

from collections.abc import Callable

import numpy as np

from reference import dropout, residual_layernorm


def forward(
    residual: np.ndarray,
    out: np.ndarray,
    mean: np.ndarray,
    rstd: np.ndarray,
    inp1: np.ndarray,
    inp2: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    rng: np.ndarray,
    *,
    p: float,
    stream: int,
    stored_residual: Callable[[np.ndarray], np.ndarray] = lambda residual: residual,
) -> None:
    """residual and out (N, C), mean and rstd (N) from inp1, inp2 (N, C), weight and bias (C), rng
    (4); `stored_residual`: what residual is after it was stored in a narrower type."""
    kept = np.empty_like(inp2)
    dropout.forward(kept.reshape(-1), inp2.reshape(-1), rng, p=p, stream=stream)
    row = residual, out, mean, rstd, inp1, kept, weight, bias
    residual_layernorm.forward(*row, stored_residual)


def backward(
    dinp: np.ndarray,
    dbranch: np.ndarray,
    dweight: np.ndarray,
    dbias: np.ndarray,
    dout: np.ndarray,
    inp: np.ndarray,
    weight: np.ndarray,
    mean: np.ndarray,
    rstd: np.ndarray,
    rng: np.ndarray,
    *,
    p: float,
    stream: int,
    stored_dinp: Callable[[np.ndarray], np.ndarray] = lambda dinp: dinp,
) -> None:
    """dinp (N, C), dweight (C) and dbias (C) accumulate, and dbranch (N, C) is written. dout and
    inp, the sum, are (N, C); rng (4); `stored_dinp` as forward's of
    residual."""
    residual_layernorm.backward(dinp, dweight, dbias, dout, inp, weight, mean, rstd)
    dropout.backward(dbranch.reshape(-1), stored_dinp(dinp).reshape(-1), rng, p=p, stream=stream)
