"""Dropout, residual and LayerNorm in one op: the mask is drawn where a branch joins the stream."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import Case, Dims, distinct, read, update, write
from ladder.dropout.ops import SCALARS, with_state
from ladder.layernorm import ops as layernorm
from ladder.residual_layernorm import ops as without_dropout
from reference import dropout_residual_layernorm


def exact_sums(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Multiples of 1/32, and of 1/64 that are doubled: every real type holds their sums exactly, so
    that the way they are rounded makes no difference."""
    shape = distinct(dims["N"], dims["C"]), dims["C"]
    return {"inp1": rng.integers(-64, 65, shape) / 32, "inp2": rng.integers(-64, 65, shape) / 64}


large_and_small_rows = with_state(layernorm.with_statistics(layernorm.rows_of_all_sizes))


def backward_cancels(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """As without dropout; what is left of dinp goes to dbranch, doubled at p = 1/2."""
    sizes = layernorm.backward_cancels(arrays)
    return {**sizes, "dbranch": 2 * sizes["dinp"]}


forward = replace(
    without_dropout.forward,
    name="dropout_residual_layernorm.forward",
    summary="residual = inp1 + dropout(inp2), out = layernorm of residual as it is stored",
    args=(*without_dropout.forward.args, read("rng", "4", "uint32")),
    scalars=SCALARS,
    # 1 / (1 - p) = 2, a power of two: scaling rounds nothing, so that sums stay exact (exact_sums)
    scalar_values={"p": 0.5, "stream": 7},
    reference=dropout_residual_layernorm.forward,
    flops=lambda d: 10 * d["N"] * d["C"],
    bench={"N=16384 C=384": {"N": 16384, "C": 384}, "N=65536": {"N": 65536, "C": 768}},
    make_inputs=with_state(exact_sums),
    cases={
        "large mean": Case(with_state(without_dropout.large_mean), hard=True),
        "p = 0, first stream": Case(
            with_state(without_dropout.exact_sums), scalars={"p": 0.0, "stream": 0}
        ),
        "p = 0.1, rounded sums": Case(with_state(without_dropout.rounded_sums), scalars={"p": 0.1}),
        "second layer": layernorm.SECOND_LAYER,
    },
)

backward = replace(
    forward,
    name="dropout_residual_layernorm.backward",
    summary="dinp += layernorm's gradient of dout, dbranch = dropout's gradient of dinp",
    args=(
        update("dinp", "N C", terms="C"),
        write("dbranch", "N C", terms="C"),
        *without_dropout.backward.args[1:],
        read("rng", "4", "uint32"),
    ),
    reference=dropout_residual_layernorm.backward,
    flops=lambda d: 16 * d["N"] * d["C"],
    make_inputs=with_state(layernorm.backward_inputs),
    cases={
        "rows of all sizes": Case(large_and_small_rows, hard=True),
        "p = 0, first stream": Case(scalars={"p": 0.0, "stream": 0}),
        "p = 0.1": Case(scalars={"p": 0.1}),
        "second layer": layernorm.SECOND_LAYER_BACKWARD,
    },
    cancels=backward_cancels,
)

LADDERS = (Ladder(forward), Ladder(backward))
