"""Random inputs for an op, as checks and measurements use them, and one run on them."""

import math
from collections.abc import Mapping

import numpy as np

from ladder.core.contract.binding import bind
from ladder.core.contract.expressions import evaluate_whole
from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import DTYPES, Case, Dims, Op, distinct, resolve_dtype
from ladder.core.contract.rung_file import Rung
from ladder.core.emulator.emulated import Emulated

Arrays = Mapping[str, np.ndarray]

NORMAL = "normal"  # the case that every op has


def make_inputs(
    op: Op, dims: Dims, real: np.dtype, rng: np.random.Generator, case: str = NORMAL
) -> dict[str, np.ndarray]:
    """Random contents of all arguments that are read, rounded to the dtypes of the call.

    case  "normal", or the name of one of the op's cases
    """
    values = op.make_inputs(dims, rng) if op.make_inputs else {}
    if (more := case_of(op, case).inputs) is not None:
        values = {**values, **more(dims, rng)}
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


def scalars(op: Op, case: str = NORMAL, dims: Dims | None = None) -> dict[str, float]:
    """The op's constants as a kernel gets them: rounded to their dtypes. `dims`: of a case."""
    constants = {**op.scalar_values, **case_of(op, case).scalars}
    values = {
        n: evaluate_whole(v, dims or {}) if isinstance(v, str) else v for n, v in constants.items()
    }
    return {s.name: np.dtype(s.dtype).type(values[s.name]).item() for s in op.scalars}


def starts(op: Op, dims: Dims, case: str = NORMAL) -> dict[str, int]:
    """The element at which each argument begins that does not begin at an aligned address."""
    return {name: evaluate_whole(text, dims) for name, text in case_of(op, case).starts.items()}


def case_of(op: Op, case: str) -> Case:
    """A case of an op by its name; without settings of its own for the normal one."""
    return Case() if case == NORMAL else op.cases[case]


def run_on(device: Emulated, ladder: Ladder, rung: Rung, dtype: str, dims: Dims) -> None:
    """Run a rung once on random inputs, which are always the same."""
    op, real = ladder.op, DTYPES[dtype]
    inputs = make_inputs(op, dims, real, np.random.default_rng(0))
    arrays: dict[str, np.ndarray | None] = dict.fromkeys(arg.name for arg in op.args)
    for arg in op.args:
        if arg.name not in op.unmeasured:
            array = device.empty(arg.resolve_shape(dims), resolve_dtype(arg.dtype, real))
            array[...] = inputs.get(arg.name, 0)
            arrays[arg.name] = array
    bind(op, rung, device, real, dims, arrays, scalars(op))()
    device.synchronize()
