"""ReLU: the simplest activation, with the simplest kernels. GPT-2 uses gelu instead."""

from dataclasses import replace

import numpy as np

from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import Case, Dims, MakeInputs, Op, distinct, read, write
from ladder.gelu.ops import BENCH, SHAPES
from reference import relu


def some_zeros(name: str) -> MakeInputs:
    """Normal values, every seventh of them 0, where the derivative jumps."""

    def make(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
        values = rng.standard_normal(distinct(dims["N"]))
        values[::7] = 0
        return {name: values}

    return make


def delicate(name: str) -> dict[str, Case]:
    """Cases for the argument whose sign decides."""

    sizes = np.array([1e-40, 1e-7, 1.0, 6e4])
    values = np.array([0.0, -0.0, *sizes, *-sizes])
    case = Case(lambda dims, rng: {name: rng.choice(values, distinct(dims["N"]))})
    return {"tiny, huge and signed zeros": case}


NOT_A_NUMBER = Case(
    lambda dims, rng: {"inp": rng.choice(np.array([np.nan, 1.0, -1.0]), distinct(dims["N"]))},
    finite=False,
)

forward = Op(
    name="relu.forward",
    summary="out = max(inp, 0)",
    args=(write("out", "N"), read("inp", "N")),
    reference=relu.forward,
    flops=lambda d: d["N"],
    shapes=SHAPES,
    bench=BENCH,
    make_inputs=some_zeros("inp"),
    cases={**delicate("inp"), "not a number": NOT_A_NUMBER},
)

backward = replace(
    forward,
    name="relu.backward",
    summary="dinp = dout where out > 0, else 0",
    args=(write("dinp", "N"), read("dout", "N"), read("out", "N")),
    reference=relu.backward,
    make_inputs=some_zeros("out"),
    cases=delicate("out"),
)

LADDERS = (Ladder(forward), Ladder(backward))
