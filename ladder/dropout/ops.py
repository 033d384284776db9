"""Dropout whose mask is a function of a counter, so that any device draws the same one.

rng = (seed low, seed high, step, micro-step). It is a buffer and not a scalar because the step in
it changes while a captured graph is replayed. Each dropout of one step has its own `stream`.
"""

from dataclasses import replace

import numpy as np

from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import Case, Dims, MakeInputs, Op, Scalar, read, write
from reference import dropout

SCALARS = (Scalar("p", "float32"), Scalar("stream", "uint32"))
VALUES = {"p": 0.2, "stream": 7}


def inputs(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {"rng": rng.integers(0, 2**32, 4, dtype=np.uint32)}


def with_state(others: MakeInputs) -> MakeInputs:
    """Other inputs, and a random state."""
    return lambda dims, rng: {**others(dims, rng), **inputs(dims, rng)}


forward = Op(
    name="dropout.forward",
    summary="out = inp / (1 - p) where the counter's random number is at least p, else 0",
    args=(write("out", "N"), read("inp", "N"), read("rng", "4", "uint32")),
    scalars=SCALARS,
    scalar_values=VALUES,
    reference=dropout.forward,
    flops=lambda d: d["N"],
    shapes=tuple({"N": N} for N in (1, 3, 4, 31, 33, 1000, 4099)),
    bench={"N=65536*768": {"N": 65536 * 768}, "N=16384*384": {"N": 16384 * 384}},
    make_inputs=inputs,
    cases={
        "p = 0": Case(scalars={"p": 0.0}),
        "p = 0.1, first stream": Case(scalars={"p": 0.1, "stream": 0}),
        "p nearly 1": Case(scalars={"p": 1 - 2**-24}),
    },
)

backward = replace(
    forward,
    name="dropout.backward",
    summary="dinp = dout / (1 - p) under the mask of the forward pass, drawn again",
    args=(write("dinp", "N"), read("dout", "N"), read("rng", "4", "uint32")),
    reference=dropout.backward,
)

LADDERS = (Ladder(forward), Ladder(backward))
