"""Attention (Vaswani et al. 2017): causal multi-head self-attention on packed q, k and v.

qkv (B, T, 3C) holds q, k and v side by side, each as NH heads of HS = C / NH channels. Per head:

    scores = q @ k.T / sqrt(HS)         (T, T); a query sees no key that comes after it
    probs  = softmax(scores)            row by row
    out    = probs @ v                  (T, HS)

Backward (do is the gradient of out; the sum over a row of dprobs * probs equals that of do * out):

    dv = probs.T @ do      dprobs = do @ v.T      dscores = probs * (dprobs - sum(do * out))
    dq = dscores @ k / sqrt(HS)                   dk = dscores.T @ q / sqrt(HS)

Kept for backward: out, and per query lse = log(sum(exp(scores))), from which probs is computed
again as exp(scores - lse). The (T, T) matrix of one head at a time is all the memory it needs.
"""

from collections.abc import Iterator

import numpy as np


def heads(array: np.ndarray, NH: int, parts: int) -> Iterator[list[np.ndarray]]:
    """For every head of every sequence: (T, HS) views of what (B, T, parts * C) packs."""
    B, T, width = array.shape
    views = array.reshape(B, T, parts, NH, width // parts // NH)
    for b, h in np.ndindex(B, NH):
        yield [views[b, :, part, h] for part in range(parts)]


def causal_mask(T: int, dtype: np.dtype) -> np.ndarray:
    """(T, T), to be added to scores: -inf where the key comes after the query, 0 elsewhere."""
    return np.triu(np.full((T, T), -np.inf, dtype), 1)


def masked_scores(q: np.ndarray, k: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """(T, T) scores of one head."""
    scores = q @ k.T
    scores *= q.shape[1] ** -0.5
    scores += mask
    return scores


def forward(out: np.ndarray, lse: np.ndarray, qkv: np.ndarray) -> None:
    """out (B, T, C) and lse (B, NH, T) from qkv (B, T, 3C)."""
    B, NH, T = lse.shape
    mask, rows = causal_mask(T, qkv.dtype), lse.reshape(B * NH, T)
    for row, (o,), (q, k, v) in zip(rows, heads(out, NH, 1), heads(qkv, NH, 3), strict=True):
        probs = masked_scores(q, k, mask)  # (T, T)
        largest = probs.max(axis=1, keepdims=True)  # exp(score - largest) cannot overflow
        probs -= largest
        np.exp(probs, out=probs)
        total = probs.sum(axis=1, keepdims=True)
        probs /= total
        o[:] = probs @ v
        row[:] = (largest + np.log(total))[:, 0]


def backward(
    dqkv: np.ndarray, dout: np.ndarray, qkv: np.ndarray, out: np.ndarray, lse: np.ndarray
) -> None:
    """dqkv (B, T, 3C) from dout (B, T, C), qkv (B, T, 3C), out (B, T, C) and lse (B, NH, T)."""
    B, NH, T = lse.shape
    mask, rows = causal_mask(T, qkv.dtype), lse.reshape(B * NH, T)
    packed, single = (
        (heads(dqkv, NH, 3), heads(qkv, NH, 3)),
        (heads(dout, NH, 1), heads(out, NH, 1)),
    )
    for row, (dq, dk, dv), (q, k, v), (do,), (o,) in zip(rows, *packed, *single, strict=True):
        probs = masked_scores(q, k, mask)  # (T, T)
        probs -= row[:, None]
        np.exp(probs, out=probs)
        dv[:] = probs.T @ do
        dscores = do @ v.T  # (T, T): dprobs so far
        dscores -= (do * o).sum(axis=1, keepdims=True)
        dscores *= probs
        dscores *= q.shape[1] ** -0.5
        dq[:] = dscores @ k
        dk[:] = dscores.T @ q
