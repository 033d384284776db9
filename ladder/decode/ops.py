"""Decoding: what a model computes for one new token of each text, with a key-value cache.

    embedding   the token's row of the token table plus its position's row
    append      its key and value go into the cache
    attention   its query over the keys and values in the cache
    linear      matrix times vector: a linear layer of few rows
    sample      draws the next token from the logits

and two of them that a kernel can do together with what comes next: append_attention, linear_gelu.
Positions are read from memory, so that one recorded graph serves every token.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import (
    Arg,
    Case,
    Dims,
    MakeInputs,
    Op,
    Scalar,
    read,
    shapes,
    update,
    write,
)
from ladder.gelu import ops as gelu
from ladder.matmul import library_rungs as library
from ladder.matmul import ops as matmul
from ladder.matmul.library_rungs import library_rungs, one_kernel_rungs
from ladder.matmul_gelu.ops import scaled
from reference import decode

Arrays = dict[str, np.ndarray]

LINEAR_SHAPES = shapes("N C OC", (1, 1, 1), (1, 64, 48), (3, 31, 33), (2, 264, 67), (8, 129, 136))

# What float32 is off by in the share of the tokens up to some token, relative: an exponential by
# 2^-21, most of it from its argument, which float32 holds to 2^-24 of a number up to 10; sums of
# 50,257 of them, in parts of a few dozen, by about as much. A token's own share is ten times that
# on average, so a wrong token is hardly ever accepted. One running sum over all of them is off by
# some 2^-15, more than a token's share.
SUM_ERROR = 2.0**-19

GPT2 = {"B": 1, "P": 1024, "C": 768}
LINEAR_BENCH = {
    "lm head": {"N": 1, "C": 768, "OC": 50304},
    "qkv": {"N": 1, "C": 768, "OC": 2304},
    "attproj": {"N": 1, "C": 768, "OC": 768},
    "fc": {"N": 1, "C": 768, "OC": 3072},
    "fcproj": {"N": 1, "C": 3072, "OC": 768},
    "fc N=8": {"N": 8, "C": 768, "OC": 3072},
}


def last_positions(B: int, P: int) -> np.ndarray:
    """A position for each text, in the second half of the window: the last one, and others."""
    positions: np.ndarray = P - 1 - 7 * np.arange(B) % ((P + 1) // 2)
    return positions


def embedding_inputs(dims: Dims, rng: np.random.Generator) -> Arrays:
    B, P, V = dims["B"], dims["P"], dims["V"]
    return {"window": rng.integers(0, V, (B, P + 1)), "positions": last_positions(B, P)}


def append_inputs(dims: Dims, rng: np.random.Generator) -> Arrays:
    return {"starts": rng.integers(0, dims["P"] - dims["T"] + 1, dims["B"])}


def attention_inputs(dims: Dims, rng: np.random.Generator) -> Arrays:
    return {"positions": last_positions(dims["B"], dims["P"])}


def first_positions(dims: Dims, rng: np.random.Generator) -> Arrays:
    """Texts that have just begun: most of the cache is not theirs yet."""
    return {"positions": np.arange(dims["B"]) % dims["P"]}


def large_scores(dims: Dims, rng: np.random.Generator) -> Arrays:
    """Scores far below 0 in every second text, and far above in the others."""
    B, P, C = dims["B"], dims["P"], dims["C"]
    qkv, kv = rng.standard_normal((B, 3 * C)), rng.standard_normal((B, P, 2 * C))
    factor = 80 / np.sqrt(C // dims["NH"])  # scores of about 400, whatever a head's size
    qkv[:, :C] += np.where(np.arange(B) % 2, factor, -factor)[:, None]
    kv[:, :, :C] += 5
    return {"qkv": qkv, "kv": kv}


def keys_seen(dims: Dims) -> int:
    """The keys that all queries of a head attend to, with the positions of `attention_inputs`."""
    return int((last_positions(dims["B"], dims["P"]) + 1).sum())


def attention_bytes(dims: Dims, real: np.dtype) -> int:
    """Query and output once; the key and value of every position that is seen once."""
    B, C = dims["B"], dims["C"]
    return 4 * B + (2 * B * C + 2 * C * keys_seen(dims)) * real.itemsize


def append_attention_bytes(dims: Dims, real: np.dtype) -> int:
    """The same, but the new token's key and value come from qkv, and are written."""
    return attention_bytes(dims, real) + 2 * dims["B"] * dims["C"] * real.itemsize


def sample_inputs(dims: Dims, rng: np.random.Generator) -> Arrays:
    """Some windows are full: measured again and again, a kernel must not go beyond one."""
    return {**embedding_inputs(dims, rng), "coins": rng.random((dims["B"], dims["P"]))}


def equal_logits(dims: Dims, rng: np.random.Generator) -> Arrays:
    """-1 and zeros of both signs, so that the k-th largest is shared by many tokens."""
    return {"logits": rng.choice([-1.0, -0.0, 0.0], (dims["B"], dims["Vp"]))}


def edge_coins(dims: Dims, rng: np.random.Generator) -> Arrays:
    """Coins of 0 and just below 1, in turns: the first token that may be drawn, and the last."""
    coins = np.where(np.arange(dims["B"]) % 2, decode.BELOW_1, 0.0)
    return {"coins": np.repeat(coins[:, None], dims["P"], axis=1)}


def next_at_an_end(kept: Callable[[int], int]) -> MakeInputs:
    """Of V tokens, the k = kept(V) largest logits stand side by side, and the next one before the
    first of them or behind the last, at an end of the row: it is what such a coin would draw."""

    def make(dims: Dims, rng: np.random.Generator) -> Arrays:
        V, k = dims["V"], kept(dims["V"])
        logits = rng.random((dims["B"], dims["Vp"]))
        for row, text in enumerate(logits[:, :V]):
            text = text[::-1] if row % 2 else text
            text[1 : 1 + k] += 2
            text[0] = 1.5
        return {"logits": logits, **edge_coins(dims, rng)}

    return make


def large_logits(dims: Dims, rng: np.random.Generator) -> Arrays:
    """Far from 0, above and below: their exponentials overflow, or all of them are 0."""
    far = np.where(np.arange(dims["B"]) % 2, -3e4, 200.0)
    return {"logits": far[:, None] + rng.standard_normal((dims["B"], dims["Vp"]))}


def at_temperature(temperature: float) -> Case:
    """Logits as far apart as the temperature is high: many tokens may be drawn."""
    return Case(
        lambda dims, rng: {"logits": temperature * rng.standard_normal((dims["B"], dims["Vp"]))},
        scalars={"temperature": temperature},
    )


def one_likely_token(dims: Dims, rng: np.random.Generator) -> Arrays:
    """Float32 rounds the weight of all tokens but one to 0. That one is the 34th: of 1,057 tokens,
    32 warps have 34 each, so that the first 32 of the first warp have no weight at all."""
    logits = np.full((dims["B"], dims["Vp"]), -200.0)
    logits[:, min(33, dims["V"] - 1)] = 0.0
    return {"logits": logits}


def not_finite(dims: Dims, rng: np.random.Generator) -> Arrays:
    """The last logit of each row is infinite, or not a number: no token is drawn."""
    logits = rng.standard_normal((dims["B"], dims["Vp"]))
    logits[:, dims["V"] - 1] = np.where(np.arange(dims["B"]) % 2, np.nan, np.inf)
    return {"logits": logits}


embedding = Op(
    name="decode.embedding",
    summary="out[b] = wte[window[b, positions[b]]] + wpe[positions[b]]",
    args=(
        write("out", "B C"),
        read("window", "B P+1", "int32"),
        read("positions", "B", "int32"),
        read("wte", "V C"),
        read("wpe", "P C"),
    ),
    reference=decode.embedding,
    flops=lambda d: d["B"] * d["C"],
    bytes=lambda d, real: d["B"] * (8 + 3 * d["C"] * real.itemsize),
    shapes=shapes("B P C V", (1, 1, 1, 1), (3, 7, 31, 5), (2, 16, 48, 101), (4, 9, 264, 50)),
    bench={"B=1": {**GPT2, "V": 50304}, "B=64": {**GPT2, "B": 64, "V": 50304}},
    make_inputs=embedding_inputs,
    cases={"no token": Case(lambda dims, rng: {"window": np.array([-1])})},
)

append = Op(
    name="decode.append",
    summary="kv[b, starts[b] + t] = key and value of qkv[b, t]",
    args=(update("kv", "B P 2*C"), read("qkv", "B T 3*C"), read("starts", "B", "int32")),
    fits=("T <= P",),
    reference=decode.append,
    flops=lambda d: 0,
    bytes=lambda d, real: d["B"] * (4 + d["T"] * 4 * d["C"] * real.itemsize),
    shapes=shapes("B T P C", (1, 1, 1, 1), (2, 3, 7, 31), (3, 1, 9, 48), (2, 16, 16, 264)),
    also=({"B": 3, "T": 2, "P": 9, "C": 264},),  # texts that begin at different positions
    bench={
        "B=1 T=1": {"B": 1, "T": 1, "P": 1024, "C": 768},
        "B=64 T=1024": {"B": 64, "T": 1024, "P": 1024, "C": 768},
    },
    make_inputs=append_inputs,
    cases={"second layer": Case(starts={"kv": "2 * B * P * C"})},
)

attention = Op(
    name="decode.attention",
    summary="out = softmax(q @ k.T / sqrt(head size)) @ v, for each head, with k and v cached",
    args=(
        write("out", "B C", terms="2*(P + C//NH)"),
        read("qkv", "B 3*C"),
        read("kv", "B P 2*C"),
        read("positions", "B", "int32"),
    ),
    fits=("C % NH == 0",),
    reference=decode.attention,
    flops=lambda d: 4 * d["C"] * keys_seen(d),
    bytes=attention_bytes,
    shapes=shapes(
        "B P C NH",
        (1, 1, 1, 1),
        (2, 7, 6, 3),
        (1, 65, 64, 1),
        (3, 131, 32, 2),
        (2, 150, 128, 2),
        (1, 19, 85, 1),
    ),
    # A cluster of 8 blocks goes through the keys 256 at a time in float32, 512 in 16 bits.
    also=({"B": 2, "P": 600, "C": 64, "NH": 1},),
    bench={"B=1 P=1024": {**GPT2, "NH": 12}, "B=64 P=1024": {**GPT2, "B": 64, "NH": 12}},
    make_inputs=attention_inputs,
    cases={
        "first positions": Case(first_positions),
        "large scores": Case(large_scores, hard=True),
        "second layer": Case(starts={"kv": "2 * B * P * C"}),
    },
)

append_attention = replace(
    attention,
    name="decode.append_attention",
    summary="key and value of qkv go into kv; then out = decode.attention",
    args=(
        write("out", "B C", terms="2*(P + C//NH)"),
        update("kv", "B P 2*C"),
        read("qkv", "B 3*C"),
        read("positions", "B", "int32"),
    ),
    reference=decode.append_attention,
    bytes=append_attention_bytes,
    # A cluster of 8 blocks goes through the keys 512 at a time in float32, 1,024 in 16 bits.
    also=({"B": 2, "P": 1100, "C": 64, "NH": 1},),
)

linear = replace(
    matmul.forward,
    name="decode.linear",
    summary="out = inp @ weight.T + bias, for few rows",
    reference=decode.linear,
    shapes=LINEAR_SHAPES,
    also=({"N": 17, "C": 40, "OC": 24},),  # more rows than one pass over a weight serves
    cases={"second layer": Case(starts={"weight": "OC * C", "bias": "OC"})},
    bench=LINEAR_BENCH,
)


def linear_gelu_cancels(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What cancels in the gelu of the product, which is no argument."""
    product = arrays["inp"] @ arrays["weight"].T + arrays["bias"]
    return {"out": gelu.half(product)}


linear_gelu = Op(
    name="decode.linear_gelu",
    summary="out = gelu(inp @ weight.T + bias), for few rows",
    args=(*linear.args[:3], read("bias", "OC")),
    reference=decode.linear_gelu,
    flops=lambda d: matmul.flops(d) + 8 * d["N"] * d["OC"],
    shapes=LINEAR_SHAPES,
    make_inputs=scaled(1),
    cases={
        "large products": Case(scaled(100), hard=True),
        "second layer": Case(starts={"weight": "OC * C", "bias": "OC"}),
    },
    cancels=linear_gelu_cancels,
    bench={"fc": LINEAR_BENCH["fc"], "fc N=8": LINEAR_BENCH["fc N=8"]},
)

sample = Op(
    name="decode.sample",
    summary="window[b, p + 1] from softmax(logits[b] / temperature), p = positions[b]; p += 1",
    args=(
        update("window", "B P+1", "int32"),
        update("positions", "B", "int32"),
        read("logits", "B Vp"),
        Arg("coins", "B P", "in", "float32", rtol=SUM_ERROR),
    ),
    fits=("V <= Vp",),
    scalars=(Scalar("temperature", "float32"), Scalar("top_k", "int32")),
    scalar_values={"temperature": 0.75, "top_k": 0},
    reference=decode.sample,
    flops=lambda d: 4 * d["B"] * d["V"],
    bytes=lambda d, real: d["B"] * (d["V"] * real.itemsize + 16),
    shapes=shapes("B P V Vp", (1, 1, 1, 1), (2, 3, 5, 8), (3, 4, 257, 384), (1, 9, 2050, 2176)),
    bench={
        "B=1": {"B": 1, "P": 1024, "V": 50257, "Vp": 50304},
        "B=64": {"B": 64, "P": 1024, "V": 50257, "Vp": 50304},
    },
    make_inputs=sample_inputs,
    cases={
        "top 3": Case(next_at_an_end(lambda V: min(3, V - 1)), scalars={"top_k": 3}),
        "top 1": Case(equal_logits, scalars={"top_k": 1}),
        "top V - 1": Case(next_at_an_end(lambda V: V - 1), scalars={"top_k": "V - 1"}),
        "top V, coins at the edges": Case(edge_coins, scalars={"top_k": "V"}),
        "large logits, temperature 0.1": Case(large_logits, scalars={"temperature": 0.1}),
        "top 40, equal logits": Case(equal_logits, scalars={"top_k": 40}),
        "temperature 0.001": at_temperature(1e-3),
        "temperature 100": at_temperature(100.0),
        "temperature 0": Case(equal_logits, scalars={"temperature": 0.0}),
        "one likely token": Case(one_likely_token),
        "not finite": Case(not_finite),
    },
)

LADDERS = (
    Ladder(embedding),
    Ladder(append),
    Ladder(attention),
    Ladder(append_attention),
    Ladder(linear, (library_rungs(library.forward)[0], one_kernel_rungs()[0])),
    Ladder(linear_gelu),
    Ladder(sample),
)
