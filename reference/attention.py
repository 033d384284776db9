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

import numpy as np


def split(packed: np.ndarray, NH: int, parts: int) -> np.ndarray:
    """(B, T, parts * C) seen as (B, NH, parts, T, HS), so that [b, h, part] is a matrix."""
    B, T, width = packed.shape
    heads = packed.reshape(B, T, parts, NH, width // parts // NH)
    matrices: np.ndarray = heads.transpose(0, 3, 2, 1, 4)
    return matrices


def causal_mask(T: int, dtype: np.dtype) -> np.ndarray:
    """(T, T), to be added to scores: -inf where the key comes after the query, 0 elsewhere."""
    return np.triu(np.full((T, T), -np.inf, dtype), 1)


def masked_scores(q: np.ndarray, k: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """(T, T) scores of one head."""
    scores: np.ndarray = q @ k.T
    scores *= q.shape[1] ** -0.5
    scores += mask
    return scores


def forward(out: np.ndarray, lse: np.ndarray, qkv: np.ndarray) -> None:
    """out (B, T, C) and lse (B, NH, T) from qkv (B, T, 3C)."""
    B, NH, T = lse.shape
    out, qkv = split(out, NH, 1), split(qkv, NH, 3)
    mask = causal_mask(T, qkv.dtype)
    for b, h in np.ndindex(B, NH):
        q, k, v = qkv[b, h]  # (T, HS) each
        probs = masked_scores(q, k, mask)  # (T, T)
        largest = probs.max(axis=1)  # (T): exp(score - largest) cannot overflow
        probs -= largest[:, None]
        np.exp(probs, out=probs)
        total = probs.sum(axis=1)  # (T)
        probs /= total[:, None]
        out[b, h, 0] = probs @ v
        lse[b, h] = largest + np.log(total)


def backward(
    dqkv: np.ndarray, dout: np.ndarray, qkv: np.ndarray, out: np.ndarray, lse: np.ndarray
) -> None:
    """dqkv (B, T, 3C) from dout (B, T, C), qkv (B, T, 3C), out (B, T, C) and lse (B, NH, T)."""
    B, NH, T = lse.shape
    dout, out = split(dout, NH, 1), split(out, NH, 1)
    dqkv, qkv = split(dqkv, NH, 3), split(qkv, NH, 3)
    mask = causal_mask(T, qkv.dtype)
    for b, h in np.ndindex(B, NH):
        q, k, v = qkv[b, h]  # (T, HS) each
        dq, dk, dv = dqkv[b, h]  # views: writing them writes dqkv
        do, o = dout[b, h, 0], out[b, h, 0]
        probs = masked_scores(q, k, mask)  # (T, T)
        probs -= lse[b, h][:, None]
        np.exp(probs, out=probs)
        dv[:] = probs.T @ do
        dscores = do @ v.T  # (T, T): dprobs so far
        dscores -= (do * o).sum(axis=1, keepdims=True)
        dscores *= probs
        dscores *= q.shape[1] ** -0.5
        dq[:] = dscores @ k
        dk[:] = dscores.T @ q
