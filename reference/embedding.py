"""Embedding: the vector of a token plus the vector of its position.

out[b, t] = wte[tokens[b, t]] + wpe[t]
"""

import numpy as np


def forward(out: np.ndarray, tokens: np.ndarray, wte: np.ndarray, wpe: np.ndarray) -> None:
    """out (B, T, C) from tokens (B, T), wte (V, C) and wpe (P, C), P >= T."""
    T = tokens.shape[1]
    np.add(wte[tokens], wpe[:T], out=out)


def backward(dwte: np.ndarray, dwpe: np.ndarray, dout: np.ndarray, tokens: np.ndarray) -> None:
    """dwte (V, C) and dwpe (P, C) accumulate dout (B, T, C) at the rows that were looked up."""
    T = tokens.shape[1]
    for b, t in np.ndindex(tokens.shape):  # a token that occurs twice receives both gradients
        dwte[tokens[b, t]] += dout[b, t]
    dwpe[:T] += dout.sum(axis=0)
