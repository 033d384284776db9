"""Attention: causal multi-head self-attention on packed queries, keys and values.

The forward pass keeps one value per query and head for the backward pass: lse, the logarithm of its
softmax sum. The backward pass recomputes every probability from it, so that the (T, T) matrix is
never stored.
"""

import math
from collections.abc import Callable

import numpy as np

from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import Case, Dims, MakeInputs, Op, distinct, read, shapes, write
from reference import attention

SHAPES = shapes(
    "B T C NH", (1, 1, 1, 1), (2, 7, 6, 3), (1, 65, 64, 1), (1, 131, 32, 2), (1, 19, 85, 1)
)
BENCH = {
    "B=64 T=1024": {"B": 64, "T": 1024, "C": 768, "NH": 12},
    "B=4 T=1024": {"B": 4, "T": 1024, "C": 768, "NH": 12},
}

# A score is a sum over the channels of a head, and an output is a sum over the keys. The error of a
# sum of n terms, then one of m, grows like sqrt(n) + sqrt(m) <= sqrt(2 (n + m)).
TERMS = "2*(T + C//NH)"


def flops(products: int) -> Callable[[Dims], int]:
    """`products` matrix products of (T, T, head size) per head, half of each under the mask."""
    return lambda d: products * d["B"] * d["T"] * d["T"] * d["C"]


def large_scores(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Scores far above 0 in every second row, and far below in the others. Unless the largest is
    subtracted, their exponentials overflow, or all of a row become 0."""
    qkv = rng.standard_normal((dims["B"], dims["T"], 3, dims["C"]))
    qkv[:, :, :2] += 5  # q and k: scores around 25 sqrt(HS)
    qkv[:, 1::2, 0] -= 10  # and around -25 sqrt(HS)
    return {"qkv": qkv.reshape(dims["B"], dims["T"], 3 * dims["C"])}


def equal_scores(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """No query differs from another, or from 0: each output is a plain mean."""
    qkv = rng.standard_normal((dims["B"], dims["T"], 3, dims["C"]))
    qkv[:, :, 0] = 0
    return {"qkv": qkv.reshape(dims["B"], dims["T"], 3 * dims["C"])}


# One layer's part of the arrays of all layers; see Case.starts.
SECOND_LAYER = Case(starts={"qkv": "3 * B * T * C", "out": "B * T * C", "lse": "B * NH * T"})


def with_outputs(
    inputs: MakeInputs, forward: Callable[..., None] = attention.forward
) -> MakeInputs:
    """The same inputs for the backward pass: out and lse that belong to them."""

    def make(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
        T, C, NH = (dims[name] for name in ("T", "C", "NH"))
        arrays = inputs(dims, rng)
        B = len(arrays["qkv"])
        out, lse = np.empty((B, T, C)), np.empty((B, NH, T))
        forward(out, lse, *arrays.values())
        return {**arrays, "out": out, "lse": lse}

    return make


def normal(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    size = dims["T"], 3 * dims["C"]
    return {"qkv": rng.standard_normal((distinct(dims["B"], math.prod(size)), *size))}


forward = Op(
    name="attention.forward",
    summary="out = softmax(q @ k.T / sqrt(head size), causal) @ v, for each head",
    args=(
        write("out", "B T C", terms=TERMS),
        write("lse", "B NH T", "float32", terms=TERMS),
        read("qkv", "B T 3*C"),
    ),
    fits=("C % NH == 0",),
    reference=attention.forward,
    flops=flops(2),
    shapes=SHAPES,
    bench=BENCH,
    cases={
        "large scores": Case(large_scores, hard=True),
        "equal scores": Case(equal_scores),
        "second layer": SECOND_LAYER,
    },
)

backward = Op(
    name="attention.backward",
    summary="dqkv from dout, with the scores recomputed from qkv and lse",
    args=(
        write("dqkv", "B T 3*C", terms=TERMS),
        read("dout", "B T C"),
        read("qkv", "B T 3*C"),
        read("out", "B T C"),
        read("lse", "B NH T", "float32"),
    ),
    fits=("C % NH == 0",),
    reference=attention.backward,
    flops=flops(5),
    shapes=SHAPES,
    bench=BENCH,
    make_inputs=with_outputs(normal),
    cases={
        "large scores": Case(with_outputs(large_scores), hard=True),
        "equal scores": Case(with_outputs(equal_scores)),
        "second layer": SECOND_LAYER,
    },
)

LADDERS = (Ladder(forward), Ladder(backward))
