"""Random inputs for an op, as checks and measurements use them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ladder.contract.dims import Dims
from ladder.contract.dtypes import resolve_dtype
from ladder.contract.op import Op, distinct

Arrays = Mapping[str, np.ndarray]


def make_inputs(
    op: Op, dims: Dims, real: np.dtype, rng: np.random.Generator, inputs: str = "normal"
) -> dict[str, np.ndarray]:
    """Random contents of all arguments that are read, rounded to the dtypes of the call.

    inputs  "normal", or the name of one of the op's hard inputs
    """
    values = op.make_inputs(dims, rng) if op.make_inputs else {}
    if inputs != "normal":
        values = {**values, **op.hard_inputs[inputs](dims, rng)}
    arrays = {}
    for arg in op.args:
        if arg.role != "out":
            shape, dtype = arg.resolve_shape(dims), resolve_dtype(arg.dtype, real)
            if arg.name in values:
                drawn = np.asarray(values[arg.name])
            else:
                drawn = rng.standard_normal(distinct(math.prod(shape)))
            arrays[arg.name] = np.resize(drawn.astype(dtype), shape)
    return arrays


def scalars(op: Op) -> dict[str, float]:
    """The op's constants as a kernel gets them: rounded to their dtypes."""
    return {s.name: np.dtype(s.dtype).type(op.scalar_values[s.name]).item() for s in op.scalars}
