"""Attention whose probabilities are dropped out, as in Vaswani et al. 2017 and GPT-2.

As attention.py, with a mask of 0 and 1 / share, where share is the part that is kept. Per head:

    probs = softmax(scores)             as without dropout: lse and the softmax's sum see no mask
    out   = (probs * mask) @ v

Backward (do is the gradient of out):

    dv = (probs * mask).T @ do          dprobs = (do @ v.T) * mask
    dscores = probs * (dprobs - sum(do * out))          and dq, dk from it as without dropout

The sum over a row of dprobs * probs still equals that of do * out: both are the sum over keys and
channels of probs * mask * do * v, since out holds the mask already.

Kept for backward: out and lse; the mask is drawn again, by the counter of dropout.py. An element
gets a byte, not a word as there, and is kept if the byte is at least p * 256, rounded: p is taken
as a multiple of 1/256, and 1 / share is 1 / (1 - p) for that p. 16 elements take one call of
Philox: the four words belong to (query, key), (query, key + 1), (query + 1, key) and (query + 1,
key + 1), and a word's four bytes, lowest first, to that element and those (0, 8), (8, 0) and (8, 8)
later. In the layouts of tensor cores two lanes share these 16, be the tile the scores or their
transpose.
"""

import numpy as np

from reference.attention import causal_mask, masked_scores, split
from reference.dropout import drop_threshold
from reference.philox import random_words

VALUES = 256  # of a byte


def keep_mask(rng: np.ndarray, head: int, T: int, *, p: float, stream: int) -> np.ndarray:
    """(T, T): 0 where a probability is dropped, 1 / share elsewhere, of one head of a batch.

    head  counted over the batch: b * NH + h
    """
    tiles = -(-T // 16)
    size = 4 * (4 * tiles) ** 2  # words of a head: four for each group
    words = random_words(rng, stream, slice(head * size, (head + 1) * size))
    values = words[:, None] >> np.array([0, 8, 16, 24], np.uint32) & 255  # bytes
    # (query: tile, pair; key: tile, pair; which of the query pair, of the key pair; 8 later)
    values = values.reshape(tiles, 4, tiles, 4, 2, 2, 2, 2).transpose(0, 6, 1, 4, 2, 7, 3, 5)
    values = values.reshape(16 * tiles, 16 * tiles)[:T, :T]
    threshold = drop_threshold(p, VALUES)
    mask: np.ndarray = (values >= threshold) / (1 - threshold / VALUES)
    return mask


def forward(
    out: np.ndarray, lse: np.ndarray, qkv: np.ndarray, rng: np.ndarray, *, p: float, stream: int
) -> None:
    """out (B, T, C) and lse (B, NH, T) from qkv (B, T, 3C) and rng (4)."""
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
        probs *= keep_mask(rng, b * NH + h, T, p=p, stream=stream)
        out[b, h, 0] = probs @ v
        lse[b, h] = largest + np.log(total)


def backward(
    dqkv: np.ndarray,
    dout: np.ndarray,
    qkv: np.ndarray,
    out: np.ndarray,
    lse: np.ndarray,
    rng: np.ndarray,
    *,
    p: float,
    stream: int,
) -> None:
    """dqkv (B, T, 3C) from dout (B, T, C), qkv (B, T, 3C), out (B, T, C), lse (B, NH, T), and rng
    (4)."""
    B, NH, T = lse.shape
    dout, out = split(dout, NH, 1), split(out, NH, 1)
    dqkv, qkv = split(dqkv, NH, 3), split(qkv, NH, 3)
    mask = causal_mask(T, qkv.dtype)
    for b, h in np.ndindex(B, NH):
        q, k, v = qkv[b, h]  # (T, HS) each
        dq, dk, dv = dqkv[b, h]  # views: writing them writes dqkv
        do, o = dout[b, h, 0], out[b, h, 0]
        keep = keep_mask(rng, b * NH + h, T, p=p, stream=stream)  # (T, T)
        probs = masked_scores(q, k, mask)  # (T, T)
        probs -= lse[b, h][:, None]
        np.exp(probs, out=probs)
        dv[:] = (probs * keep).T @ do
        dscores = (do @ v.T) * keep  # (T, T): dprobs so far
        dscores -= (do * o).sum(axis=1, keepdims=True)
        dscores *= probs
        dscores *= q.shape[1] ** -0.5
        dq[:] = dscores @ k
        dk[:] = dscores.T @ q
