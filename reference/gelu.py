"""GELU (Hendrycks and Gimpel 2016), in the tanh form that GPT-2 was trained with.

    u   = sqrt(2 / pi) * (x + 0.044715 x^3)
    out = x / 2 * (1 + tanh(u))

    dinp = dout * (1/2 * (1 + tanh(u)) + x / 2 * (1 - tanh(u)^2) * du/dx)
    du/dx = sqrt(2 / pi) * (1 + 3 * 0.044715 x^2)

Kept for backward: the input x.
"""

import math

import numpy as np

from reference.blocks import blocks

SCALE = math.sqrt(2 / math.pi)
CUBIC = 0.044715


def tanh_u(x: np.ndarray) -> np.ndarray:
    """tanh(sqrt(2 / pi) * (x + 0.044715 x^3))"""
    t: np.ndarray = x * x
    t *= SCALE * CUBIC
    t += SCALE
    t *= x
    np.tanh(t, out=t)
    return t


def forward(out: np.ndarray, inp: np.ndarray) -> None:
    """out (N) from inp (N)."""
    for block in blocks(inp.size):
        x = inp[block]
        t = tanh_u(x)
        t += 1
        t *= x
        np.multiply(t, 0.5, out=out[block])


def backward(dinp: np.ndarray, dout: np.ndarray, inp: np.ndarray) -> None:
    """dinp (N) from dout (N) and inp (N)."""
    for block in blocks(inp.size):
        x = inp[block]
        t = tanh_u(x)
        slope = x * x
        slope *= 3 * SCALE * CUBIC
        slope += SCALE  # du/dx
        slope *= x
        slope *= 1 - t  # times (1 + t) below makes 1 - tanh^2
        slope += 1
        t += 1
        t *= slope
        t *= 0.5
        np.multiply(t, dout[block], out=dinp[block])
