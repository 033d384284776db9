"""Matmul and residual in one: the product at the end of a branch adds to the residual stream.

    out = stream + inp @ weight.T + bias    attproj after attention, fcproj at the end of the MLP

Backward, the addition copies its gradient, and the product's gradients are those of matmul: there
is nothing to fuse.
"""

import numpy as np

from reference import matmul


def forward(
    out: np.ndarray, stream: np.ndarray, inp: np.ndarray, weight: np.ndarray, bias: np.ndarray
) -> None:
    """out (N, OC) from stream (N, OC), inp (N, C), weight (OC, C) and bias (OC)."""
    matmul.forward(out, inp, weight, bias)
    out += stream
