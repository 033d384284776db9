"""Residual (He et al. 2015): a branch adds to the stream, so gradients flow past it unchanged.

out = inp1 + inp2        dinp1 = dinp2 = dout
"""

import numpy as np


def forward(out: np.ndarray, inp1: np.ndarray, inp2: np.ndarray) -> None:
    """out (N) from inp1 (N) and inp2 (N)."""
    np.add(inp1, inp2, out=out)


def backward(dinp: np.ndarray, dout: np.ndarray) -> None:
    """dinp (N) += dout (N): where a branch began, its gradient joins that of the stream."""
    dinp += dout
