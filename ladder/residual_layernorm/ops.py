"""Residual and LayerNorm in one op: a kernel normalises the sum while it is in registers."""

from collections.abc import Mapping

import numpy as np

from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import Case, Dims, Op, distinct, read, update, write
from ladder.layernorm.ops import (
    BENCH,
    SECOND_LAYER,
    SECOND_LAYER_BACKWARD,
    SHAPES,
    backward_inputs,
    rows_of_all_sizes,
    with_statistics,
)
from ladder.layernorm.ops import cancels as layernorm_cancels
from reference import residual_layernorm


def exact_sums(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Multiples of 1/32 whose sum has at most 8 bits, so that every real type holds it exactly.

    The way the sum is rounded then makes no difference, and the tolerance does not allow for it.
    """
    shape = distinct(dims["N"], dims["C"]), dims["C"]
    return {name: rng.integers(-64, 65, shape) / 32 for name in ("inp1", "inp2")}


def large_mean(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Rows around 1000: E[x^2] - E[x]^2 in float32 loses the variance in the rounding."""
    shape = dims["N"], dims["C"]
    return {"inp1": 1000 + rng.standard_normal(shape), "inp2": np.zeros(shape)}


def cancels(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The mean of the residual is subtracted, as in layernorm.forward."""
    return layernorm_cancels({**arrays, "inp": arrays["residual"]})


def backward_cancels(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The norm's part of dinp is dnorm minus its mean: at C = 1 only rounding errors are left."""
    return {"dinp": np.abs(arrays["dout"] * arrays["weight"]) * arrays["rstd"][:, None]}


forward = Op(
    name="residual_layernorm.forward",
    summary="residual = inp1 + inp2, out = layernorm of residual as it is stored",
    args=(
        write("residual", "N C"),
        write("out", "N C", terms="C"),
        write("mean", "N", "float32", terms="C"),
        write("rstd", "N", "float32", terms="C"),
        read("inp1", "N C"),
        read("inp2", "N C"),
        read("weight", "C"),
        read("bias", "C"),
    ),
    dims=("N", "C"),
    reference=residual_layernorm.forward,
    flops=lambda d: 9 * d["N"] * d["C"],
    shapes=SHAPES,
    bench=BENCH,
    make_inputs=exact_sums,
    cases={"large mean": Case(large_mean, hard=True), "second layer": SECOND_LAYER},
    cancels=cancels,
)

backward = Op(
    name="residual_layernorm.backward",
    summary="dinp += layernorm's gradient of dout; dweight and dbias accumulate over the rows",
    args=(
        update("dinp", "N C", terms="C"),
        update("dweight", "C", "float32", terms="N"),
        update("dbias", "C", "float32", terms="N"),
        read("dout", "N C"),
        read("inp", "N C"),
        read("weight", "C"),
        read("mean", "N", "float32"),
        read("rstd", "N", "float32"),
    ),
    dims=("N", "C"),
    reference=residual_layernorm.backward,
    flops=lambda d: 15 * d["N"] * d["C"],
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
