"""Embedding: a row of the token table plus a row of the position table."""

from collections.abc import Callable

import numpy as np

from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import TRAINING, Case, Dims, Op, read, shapes, update, write
from reference import embedding

SHAPES = shapes(
    "B T C V P",
    (1, 1, 1, 1, 1),
    (2, 3, 31, 5, 4),
    (3, 7, 48, 101, 8),
    (2, 5, 768, 50, 5),
    (3, 101, 32, 2, 128),  # every token a hundred times and more
    (2, 9, 8, 2300, 9),  # a scan over the vocabulary takes several rounds
)
BENCH = {
    "B=64 T=1024": {"B": 64, "T": 1024, "C": 768, "V": 50304, "P": 1024},
    "B=4 T=1024": {"B": 4, "T": 1024, "C": 768, "V": 50304, "P": 1024},
}


def inputs(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Token ids with repeats, so that a backward pass without atomics or ordering is caught."""
    return {"tokens": rng.integers(0, dims["V"], (dims["B"], dims["T"]))}


def tokens(choose: Callable[[int], list[int]]) -> Case:
    """All tokens are one of a few, by the size of the vocabulary."""
    return Case(lambda dims, rng: {"tokens": rng.choice(choose(dims["V"]), (dims["B"], dims["T"]))})


def runs(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The last token once, the first twice, others 4 times, 8 times ...: runs that are filled."""
    n, V = dims["B"] * dims["T"], dims["V"]
    found = np.repeat(np.arange(-1, n.bit_length() - 1) % V, 1 << np.arange(n.bit_length()))
    return {"tokens": rng.permutation(found[:n]).reshape(dims["B"], dims["T"])}


def text(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Tokens as frequent as the words of a text (Zipf, 1935): the n-th one a n-th as often."""
    shares = 1 / np.arange(1, dims["V"] + 1)
    found = rng.choice(dims["V"], dims["B"] * dims["T"], p=shares / shares.sum())
    return {"tokens": rng.permutation(dims["V"])[found].reshape(dims["B"], dims["T"])}


CASES = {
    "first and last token": tokens(lambda V: [0, V - 1]),
    "one token": tokens(lambda V: [V - 1]),
}


def rows_touched(dims: Dims) -> int:
    """Rows of both tables that B*T random tokens look up, on average.

    n draws out of V meet V * (1 - (1 - 1/V)^n) different ones.
    """
    V, tokens = dims["V"], dims["B"] * dims["T"]
    return round(V * (1 - (1 - 1 / V) ** tokens)) + dims["T"]


def backward_bytes(dims: Dims, real: np.dtype) -> int:
    """dout and tokens once; a read and a write of every table row that is looked up."""
    rows = rows_touched(dims)
    tokens = dims["B"] * dims["T"]
    return tokens * (dims["C"] * real.itemsize + 4) + 2 * 4 * rows * dims["C"]


def forward_bytes(dims: Dims, real: np.dtype) -> int:
    """out and tokens once; every table row that is looked up once."""
    rows = rows_touched(dims)
    tokens = dims["B"] * dims["T"]
    return tokens * 4 + (tokens + rows) * dims["C"] * real.itemsize


forward = Op(
    name="embedding.forward",
    summary="out[b, t] = wte[tokens[b, t]] + wpe[t]",
    args=(
        write("out", "B T C"),
        read("tokens", "B T", "int32"),
        read("wte", "V C"),
        read("wpe", "P C"),
    ),
    fits=("T <= P",),
    reference=embedding.forward,
    flops=lambda d: d["B"] * d["T"] * d["C"],
    shapes=SHAPES,
    bench=BENCH,
    bytes=forward_bytes,
    also=({"B": 2, "T": 3, "C": 8, "V": 3, "P": 5},),  # fewer tokens than positions
    cases=CASES,
    make_inputs=inputs,
)

backward = Op(
    name="embedding.backward",
    summary="dwte and dwpe accumulate dout at the rows that were looked up",
    args=(
        update("dwte", "V C", "float32", terms="B*T"),
        update("dwpe", "P C", "float32", terms="B"),
        read("dout", "B T C"),
        read("tokens", "B T", "int32"),
    ),
    fits=("T <= P",),
    reference=embedding.backward,
    flops=lambda d: 2 * d["B"] * d["T"] * d["C"],
    shapes=SHAPES,
    bench=BENCH,
    bytes=backward_bytes,
    cases={
        TRAINING: Case(text),
        "tokens that occur 1, 2, 4 ... times": Case(runs),
        **CASES,
        "behind another gradient": Case(starts={"dwpe": "V * C"}),
    },
    make_inputs=inputs,
)

LADDERS = (Ladder(forward), Ladder(backward))
