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

from reference import attention
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
    attention.forward(out, lse, qkv, _keep(rng, lse, p, stream))


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
    attention.backward(dqkv, dout, qkv, out, lse, _keep(rng, lse, p, stream))


def _keep(rng: np.ndarray, lse: np.ndarray, p: float, stream: int) -> attention.Keep:
    return lambda head: keep_mask(rng, head, lse.shape[2], p=p, stream=stream)
