"""Decoding: one new token for each of B texts, with the keys and values of the earlier ones cached.

A text lies in a window of P positions: window[b, p] is the id of its token at position p, and the
step of position p = positions[b] takes that token through the model and draws token p + 1. What
attention needs of earlier tokens is in the cache kv, one for each layer: kv[b, p] holds the key of
position p and then its value, C channels each, as NH heads of HS = C / NH.
"""

import numpy as np

from reference import gelu, matmul

BELOW_1 = 1 - 2.0**-24  # the largest coin, in float32 too


def embedding(
    out: np.ndarray,
    window: np.ndarray,
    positions: np.ndarray,
    wte: np.ndarray,
    wpe: np.ndarray,
) -> None:
    """out (B, C) from window (B, P + 1), positions (B), wte (V, C) and wpe (P, C).

    A token of -1, for which none could be drawn, counts as 0.
    """
    tokens = window[np.arange(len(positions)), positions]
    np.add(wte[np.maximum(tokens, 0)], wpe[positions], out=out)


def append(kv: np.ndarray, qkv: np.ndarray, starts: np.ndarray) -> None:
    """Write the keys and values of T tokens, from position starts[b] on, into kv (B, P, 2C).

    qkv (B, T, 3C) holds queries, keys and values side by side; starts (B).
    """
    T, C = qkv.shape[1], qkv.shape[2] // 3
    for b, start in enumerate(starts):
        kv[b, start : start + T] = qkv[b, :, C:]


def attention(
    out: np.ndarray, qkv: np.ndarray, kv: np.ndarray, positions: np.ndarray, NH: int
) -> None:
    """out (B, C) of the queries in qkv (B, 3C) over positions 0 to positions[b] of kv (B, P, 2C).

    Per head: softmax(q @ k.T / sqrt(HS)) @ v. The token's own key and value are in kv already.
    """
    HS = out.shape[1] // NH
    for b, position in enumerate(positions):
        q = qkv[b, : NH * HS].reshape(NH, HS, 1)
        keys, values = kv[b, : position + 1].reshape(-1, 2, NH, HS).transpose(1, 2, 0, 3)
        scores = (keys @ q)[:, :, 0]  # (NH, positions[b] + 1)
        scores *= HS**-0.5
        scores -= scores.max(axis=1, keepdims=True)
        probs = np.exp(scores, out=scores)
        probs /= probs.sum(axis=1, keepdims=True)
        out[b].reshape(NH, 1, HS)[:] = probs[:, None] @ values


def append_attention(
    out: np.ndarray, kv: np.ndarray, qkv: np.ndarray, positions: np.ndarray, NH: int
) -> None:
    """Both in one: the token's key and value go into kv (B, P, 2C), and its queries attend to it.

    Arguments as in `append`, for one token, and in `attention`.
    """
    append(kv, qkv[:, np.newaxis], positions)
    attention(out, qkv, kv, positions, NH)


linear = matmul.forward  # out (B, OC) = inp (B, C) @ weight.T + bias


def linear_gelu(out: np.ndarray, inp: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> None:
    """out (N, OC) = gelu(inp (N, C) @ weight.T + bias), weight (OC, C), bias (OC)."""
    pre = np.empty_like(out)
    linear(pre, inp, weight, bias)
    gelu.forward(out.reshape(-1), pre.reshape(-1))


def sample(
    window: np.ndarray,
    positions: np.ndarray,
    logits: np.ndarray,
    coins: np.ndarray,
    V: int,
    temperature: float,
    top_k: int,
) -> None:
    """Draw window[b, p + 1] from logits (B, Vp), where p is positions[b], which becomes p + 1.

    At the last position, P - 1, it stays: the window is full.
    coins (B, P): coins[b, p], from 0 to below 1, decides. Other arguments as in `draw`.
    """
    for b, p in enumerate(positions):
        window[b, p + 1] = draw(logits[b, :V], coins[b, p], temperature, top_k)
    np.minimum(positions + 1, coins.shape[1] - 1, out=positions)


def draw(logits: np.ndarray, coin: float, temperature: float, top_k: int) -> int:
    """A token id from logits (V), by inverse transform sampling.

    The probabilities are softmax(logits / temperature) of the `top_k` largest logits (0: all), of
    equal ones those with the lowest ids. The token is the first whose cumulative probability
    exceeds `coin`. Temperature 0 takes the likeliest. Returns -1 if a logit is not finite.
    """
    if not np.isfinite(logits).all():
        return -1
    if temperature == 0:
        return int(np.argmax(logits))
    scores = logits.astype(np.float64)
    if 0 < top_k < scores.size:
        least = np.partition(scores, -top_k)[-top_k]
        kept = scores > least
        kept[np.flatnonzero(scores == least)[: top_k - np.count_nonzero(kept)]] = True
        scores[~kept] = -np.inf
    cumulative = np.cumsum(np.exp((scores - scores.max()) / temperature))
    return int(np.searchsorted(cumulative, min(coin, BELOW_1) * cumulative[-1], side="right"))
