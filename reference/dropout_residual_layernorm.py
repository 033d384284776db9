"""Dropout, residual and LayerNorm in one: a branch is dropped as it joins the stream.

    residual = inp1 + dropout(inp2)        out = LayerNorm(residual)

Backward, the gradient of the stream takes up what comes through the norm, and the branch gets it
under the mask of the forward pass, drawn again:

    dinp += LayerNorm's gradient of dout        dbranch = dropout's gradient of dinp

What is normalised is `residual` as it is stored, and what the branch gets is `dinp` as it is
stored, as where each op is a kernel of its own. For p, stream and rng see dropout.py.
"""

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
    real: np.dtype | None = None,
) -> None:
    """residual and out (N, C), mean and rstd (N) from inp1, inp2 (N, C), weight and bias (C), rng
    (4); `real`: what residual will be stored in, if that is narrower than the array."""
    kept = np.empty_like(inp2)
    dropout.forward(kept.reshape(-1), inp2.reshape(-1), rng, p=p, stream=stream)
    residual_layernorm.forward(residual, out, mean, rstd, inp1, kept, weight, bias, real)


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
    real: np.dtype | None = None,
) -> None:
    """dinp (N, C), dweight (C) and dbias (C) accumulate, and dbranch (N, C) is written. dout and
    inp, the sum, are (N, C); rng (4); `real` as forward, of dinp."""
    residual_layernorm.backward(dinp, dweight, dbias, dout, inp, weight, mean, rstd)
    stored = dinp if real is None else dinp.astype(real).astype(dinp.dtype)
    dropout.backward(dbranch.reshape(-1), stored.reshape(-1), rng, p=p, stream=stream)
