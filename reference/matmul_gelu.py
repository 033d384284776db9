"""Matmul and GELU in one: the first half of a transformer block's MLP, as one op.

    pre = inp @ weight.T + bias
    out = gelu(pre)                  of pre as it is stored

Kept for backward: pre, for the gradient through the gelu (reference/gelu.py), and inp.
"""

import numpy as np

from reference import gelu, matmul


def forward(
    out: np.ndarray,
    pre: np.ndarray,
    inp: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    real: np.dtype | None = None,
) -> None:
    """out (N, OC) and pre (N, OC) from inp (N, C), weight (OC, C) and bias (OC); `real`: what pre
    will be stored in, if that is narrower than the array."""
    matmul.forward(pre, inp, weight, bias)
    if real is not None:
        pre[...] = pre.astype(real)
    gelu.forward(out.reshape(-1), pre.reshape(-1))
