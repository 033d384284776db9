"""ReLU: the simplest activation, with the simplest kernels. GPT-2 uses gelu instead."""

import numpy as np

from ladder.contract.dims import Dims
from ladder.contract.ladder import Ladder
from ladder.contract.op import MakeInputs, Op, distinct, read, write
from reference import relu

SHAPES = tuple({"N": N} for N in (1, 31, 33, 1000, 4099, 65536))
BENCH = {"N=65536*3072": {"N": 65536 * 3072}, "N=4096*3072": {"N": 4096 * 3072}}


def some_zeros(name: str) -> MakeInputs:
    """Normal values, every seventh of them 0, where the derivative jumps."""

    def make(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
        values = rng.standard_normal(distinct(dims["N"]))
        values[::7] = 0
        return {name: values}

    return make


forward = Op(
    name="relu.forward",
    summary="out = max(inp, 0)",
    args=(write("out", "N"), read("inp", "N")),
    dims=("N",),
    reference=relu.forward,
    flops=lambda d: d["N"],
    shapes=SHAPES,
    bench=BENCH,
    make_inputs=some_zeros("inp"),
)

backward = Op(
    name="relu.backward",
    summary="dinp = dout where out > 0, else 0",
    args=(write("dinp", "N"), read("dout", "N"), read("out", "N")),
    dims=("N",),
    reference=relu.backward,
    flops=lambda d: d["N"],
    shapes=SHAPES,
    bench=BENCH,
    make_inputs=some_zeros("out"),
)

LADDERS = (Ladder(forward), Ladder(backward))
