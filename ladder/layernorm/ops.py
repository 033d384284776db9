"""LayerNorm: each row of C channels is shifted and scaled to mean 0 and variance 1."""

from collections.abc import Mapping

import numpy as np

from ladder.contract.dims import Dims
from ladder.contract.ladder import Ladder
from ladder.contract.op import Op, distinct, read, update, write
from reference import layernorm

SHAPES = tuple(
    {"N": N, "C": C}
    for N, C in [(1, 1), (3, 31), (5, 33), (2, 768), (7, 769), (4, 1600), (301, 200)]
)
BENCH = {
    "N=65536 C=768": {"N": 65536, "C": 768},
    "N=4096 C=768": {"N": 4096, "C": 768},
}


def backward_inputs(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Statistics that belong to the input: a rung may rely on the normalised row having mean 0."""
    inp = rng.standard_normal((distinct(dims["N"], dims["C"]), dims["C"]))
    variance = inp.var(axis=1)
    return {"inp": inp, "mean": inp.mean(axis=1), "rstd": 1 / np.sqrt(variance + layernorm.EPS)}


def large_mean(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Rows around 1000: E[x^2] - E[x]^2 in float32 loses the variance in the rounding."""
    return {"inp": 1000 + rng.standard_normal((dims["N"], dims["C"]))}


def backward_cancels(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """dinp is dnorm minus its mean: at C = 1 only the rounding error of dnorm is left."""
    return {"dinp": np.abs(arrays["dout"] * arrays["weight"]) * arrays["rstd"][:, None]}


forward = Op(
    name="layernorm.forward",
    summary="out = (inp - mean) * rstd * weight + bias, row by row",
    args=(
        write("out", "N C", terms="C"),
        write("mean", "N", "float32", terms="C"),
        write("rstd", "N", "float32", terms="C"),
        read("inp", "N C"),
        read("weight", "C"),
        read("bias", "C"),
    ),
    dims=("N", "C"),
    reference=layernorm.forward,
    flops=lambda d: 8 * d["N"] * d["C"],
    shapes=SHAPES,
    bench=BENCH,
    hard_inputs={"large mean": large_mean},
)

backward = Op(
    name="layernorm.backward",
    summary="dinp from dout; dweight and dbias accumulate over the rows",
    args=(
        write("dinp", "N C", terms="C"),
        update("dweight", "C", "float32", terms="N"),
        update("dbias", "C", "float32", terms="N"),
        read("dout", "N C"),
        read("inp", "N C"),
        read("weight", "C"),
        read("mean", "N", "float32"),
        read("rstd", "N", "float32"),
    ),
    dims=("N", "C"),
    reference=layernorm.backward,
    flops=lambda d: 14 * d["N"] * d["C"],
    shapes=SHAPES,
    bench=BENCH,
    make_inputs=backward_inputs,
    cancels=backward_cancels,
)

LADDERS = (Ladder(forward), Ladder(backward))
