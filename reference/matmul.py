"""Matmul: the linear layer. A weight is stored (out features OC, in features C), as PyTorch does.

    out     = inp @ weight.T + bias
    dinp    = dout @ weight
    dweight = dout.T @ inp
    dbias   = sum over rows of dout

Each of the three products takes 2 * N * C * OC floating-point operations.
Kept for backward: inp.
"""

import numpy as np

from reference.blocks import blocks


def forward(out: np.ndarray, inp: np.ndarray, weight: np.ndarray, bias: np.ndarray | None) -> None:
    """out (N, OC) from inp (N, C), weight (OC, C) and bias (OC) or None."""
    np.matmul(inp, weight.T, out=out)
    if bias is not None:
        out += bias


def backward_input(dinp: np.ndarray, dout: np.ndarray, weight: np.ndarray) -> None:
    """dinp (N, C) from dout (N, OC) and weight (OC, C)."""
    np.matmul(dout, weight, out=dinp)


def backward_weight(dweight: np.ndarray, dout: np.ndarray, inp: np.ndarray) -> None:
    """dweight (OC, C) accumulates dout.T (OC, N) @ inp (N, C).

    In blocks of rows: all at once, the product would need a second array as large as dweight.
    """
    OC, C = dweight.shape
    for rows in blocks(OC, 2**20 // C + 1):
        dweight[rows] += dout[:, rows].T @ inp


def backward_bias(dbias: np.ndarray, dout: np.ndarray) -> None:
    """dbias (OC) accumulates dout (N, OC) over its rows."""
    dbias += dout.sum(axis=0)


def backward_weight_bias(
    dweight: np.ndarray, dbias: np.ndarray, dout: np.ndarray, inp: np.ndarray
) -> None:
    """Both: dweight (OC, C) and dbias (OC) accumulate dout.T (OC, N) @ [inp | 1] (N, C + 1).

    The bias is the weight of one more input, which is 1 in every row.
    """
    backward_weight(dweight, dout, inp)
    backward_bias(dbias, dout)
