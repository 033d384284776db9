"""Matmul and GELU in one: around the gelu of a transformer block's MLP, one product each way.

    pre  = inp @ weight.T + bias            forward: fc, the product before the gelu
    out  = gelu(pre)                        of pre as it is stored

    dinp = (dout @ weight) * gelu'(pre)     backward: fcproj, the product behind the gelu

In both directions the gelu follows a product that is at hand. In the MLP, fcproj(gelu(fc(x))), the
gradient comes from fcproj, so `backward_input` has fcproj's weight and gives the gradient of `pre`.

Kept for backward: pre, for the slope of the gelu (reference/gelu.py), and inp.
"""

from collections.abc import Callable

import numpy as np

from reference import gelu, matmul


def forward(
    out: np.ndarray,
    pre: np.ndarray,
    inp: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray,
    stored_pre: Callable[[np.ndarray], np.ndarray] = lambda pre: pre,
) -> None:
    """out (N, OC) and pre (N, OC) from inp (N, C), weight (OC, C) and bias (OC); `stored_pre`:
    what pre is after it was stored in a narrower type."""
    matmul.forward(pre, inp, weight, bias)
    pre[...] = stored_pre(pre)
    gelu.forward(out.reshape(-1), pre.reshape(-1))


def backward_input(dinp: np.ndarray, dout: np.ndarray, weight: np.ndarray, pre: np.ndarray) -> None:
    """dinp (N, C) from dout (N, OC), weight (OC, C) and the gelu's input, pre (N, C)."""
    matmul.backward_input(dinp, dout, weight)
    gelu.backward(dinp.reshape(-1), dinp.reshape(-1), pre.reshape(-1))
