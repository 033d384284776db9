"""Softmax: turns a row of V numbers into probabilities.

    probs   = exp(logits) / sum(exp(logits))
    dlogits = probs * (dprobs - sum(dprobs * probs))

The largest logit is subtracted first: the result is the same and exp cannot overflow.
Kept for backward: probs.
"""

import numpy as np


def forward(probs: np.ndarray, logits: np.ndarray) -> None:
    """probs (N, V) from logits (N, V)."""
    np.subtract(logits, logits.max(axis=1, keepdims=True), out=probs)
    np.exp(probs, out=probs)
    probs /= probs.sum(axis=1, keepdims=True)


def backward(dlogits: np.ndarray, dprobs: np.ndarray, probs: np.ndarray) -> None:
    """dlogits (N, V) from dprobs (N, V) and probs (N, V)."""
    total = (dprobs * probs).sum(axis=1, keepdims=True)  # (N, 1)
    np.subtract(dprobs, total, out=dlogits)
    dlogits *= probs
