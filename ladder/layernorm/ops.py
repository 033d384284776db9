"""LayerNorm: each row of C channels is shifted and scaled to mean 0 and variance 1."""

from collections.abc import Mapping

import numpy as np

from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import (
    Case,
    Dims,
    MakeInputs,
    Op,
    distinct,
    read,
    shapes,
    update,
    write,
)
from reference import layernorm

SHAPES = shapes("N C", (1, 1), (3, 31), (5, 33), (2, 768), (7, 769), (4, 1600), (301, 200))
BENCH = {
    "N=65536 C=768": {"N": 65536, "C": 768},
    "N=4096 C=768": {"N": 4096, "C": 768},
}


def backward_inputs(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Statistics that belong to the input: a rung may rely on the normalised row having mean 0."""
    shape = distinct(dims["N"], dims["C"]), dims["C"]
    return with_statistics(lambda dims, rng: {"inp": rng.standard_normal(shape)})(dims, rng)


def large_mean(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Rows around 1000: E[x^2] - E[x]^2 in float32 loses the variance in the rounding."""
    return {"inp": 1000 + rng.standard_normal((dims["N"], dims["C"]))}


def rows_of_all_sizes(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Rows of equal numbers, whose variance is 0; small rows, where EPS counts; and large ones."""
    sizes = np.array([0.0, 1e-4, 1e-2, 1e3])[np.arange(dims["N"]) % 4]
    return {"inp": sizes[:, None] * rng.standard_normal((dims["N"], dims["C"])) + sizes[:, None]}


def with_statistics(inputs: MakeInputs) -> MakeInputs:
    """The same inputs for the backward pass: mean and rstd that belong to inp."""

    def make(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
        inp = inputs(dims, rng)["inp"]
        rstd = 1 / np.sqrt(inp.var(axis=1) + layernorm.EPS)
        return {"inp": inp, "mean": inp.mean(axis=1), "rstd": rstd}

    return make


# Parameters, their gradients and the statistics are parts of larger arrays; see Case.starts.
STATISTICS = {"mean": "N", "rstd": "N", "weight": "C"}
SECOND_LAYER = Case(starts={**STATISTICS, "bias": "C"})
SECOND_LAYER_BACKWARD = Case(starts={**STATISTICS, "dweight": "C", "dbias": "C"})


def cancels(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The mean is subtracted. It is the same for a row: changes of one element do not show what its
    rounding does to the others."""
    return {"out": np.abs(arrays["inp"] * arrays["weight"]) * arrays["rstd"][:, None]}


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
    reference=layernorm.forward,
    flops=lambda d: 8 * d["N"] * d["C"],
    shapes=SHAPES,
    bench=BENCH,
    cases={
        "large mean": Case(large_mean, hard=True),
        "rows of all sizes": Case(rows_of_all_sizes, hard=True),
        "second layer": SECOND_LAYER,
    },
    cancels=cancels,
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
    reference=layernorm.backward,
    flops=lambda d: 14 * d["N"] * d["C"],
    shapes=SHAPES,
    bench=BENCH,
    make_inputs=backward_inputs,
    cases={
        "rows of all sizes": Case(with_statistics(rows_of_all_sizes), hard=True),
        "second layer": SECOND_LAYER_BACKWARD,
    },
    cancels=backward_cancels,
)

LADDERS = (Ladder(forward), Ladder(backward))
