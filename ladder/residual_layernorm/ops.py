"""Residual and LayerNorm in one op: a kernel normalises the sum while it is in registers."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import Case, Dims, Op, distinct, read, update, write
from ladder.layernorm import ops as layernorm
from reference import residual_layernorm


def exact_sums(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Multiples of 1/32 whose sum has at most 8 bits, so that every real type holds it exactly.

    The way the sum is rounded then makes no difference, and the tolerance does not allow for it.
    """
    shape = distinct(dims["N"], dims["C"]), dims["C"]
    return {name: rng.integers(-64, 65, shape) / 32 for name in ("inp1", "inp2")}


def rounded_sums(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Sums that no 16-bit type holds: mean and rstd must be those of what is stored."""
    shape = distinct(dims["N"], dims["C"]), dims["C"]
    return {name: rng.standard_normal(shape) for name in ("inp1", "inp2")}


def large_mean(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Rows around 1000: E[x^2] - E[x]^2 in float32 loses the variance in the rounding."""
    shape = dims["N"], dims["C"]
    return {"inp1": 1000 + rng.standard_normal(shape), "inp2": np.zeros(shape)}


def cancels(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The mean of the residual is subtracted, as in layernorm.forward."""
    return layernorm.cancels({**arrays, "inp": arrays["residual"]})


forward = Op(
    name="residual_layernorm.forward",
    summary="residual = inp1 + inp2, out = layernorm of residual as it is stored",
    args=(
        write("residual", "N C"),
        *layernorm.forward.args[:3],
        read("inp1", "N C"),
        read("inp2", "N C"),
        *layernorm.forward.args[4:],
    ),
    reference=residual_layernorm.forward,
    flops=lambda d: 9 * d["N"] * d["C"],
    shapes=layernorm.SHAPES,
    bench=layernorm.BENCH,
    make_inputs=exact_sums,
    cases={
        "large mean": Case(large_mean, hard=True),
        "rounded sums": Case(rounded_sums),
        "second layer": layernorm.SECOND_LAYER,
    },
    cancels=cancels,
)

backward = replace(
    layernorm.backward,
    name="residual_layernorm.backward",
    summary="dinp += layernorm's gradient of dout; dweight and dbias accumulate over the rows",
    args=(update("dinp", "N C", terms="C"), *layernorm.backward.args[1:]),
    reference=residual_layernorm.backward,
    flops=lambda d: 15 * d["N"] * d["C"],
)

LADDERS = (Ladder(forward), Ladder(backward))
