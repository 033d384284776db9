"""ReLU, the rectifier: the activation of the first Transformer (Vaswani et al. 2017), not of GPT-2.

    out  = max(inp, 0)
    dinp = dout where inp > 0, else 0

Kept for backward: the output; it is positive where the input is, and what it overwrites may go.
"""

import numpy as np


def forward(out: np.ndarray, inp: np.ndarray) -> None:
    """out (N) from inp (N). What is not a number stays so."""
    np.maximum(inp, 0, out=out)


def backward(dinp: np.ndarray, dout: np.ndarray, out: np.ndarray) -> None:
    """dinp (N) from dout (N) and out (N), or the input in its place; at 0 the gradient is 0."""
    dinp.fill(0)
    np.copyto(dinp, dout, where=out > 0)
