"""What a rung is compared with: inputs, and the float64 reference's outputs for them.

All rungs of a ladder are compared with the same cases, and the reference in float64 takes longer
than any kernel. So the cases that were used last are kept, as long as they fit into `MOST_KEPT`.
"""

import itertools
import math
from collections.abc import Iterable, Iterator

import numpy as np

from ladder.core.contract.op import Dims, Op
from ladder.core.verify.inputs import Arrays, case_of, make_inputs, scalars
from ladder.core.verify.tolerance import Expected, expect

MOST_KEPT = 2 << 30  # bytes
BYTES = 40  # of an element: its input, four arrays of what to expect in float64

Case = tuple[Arrays, list[Expected]]  # inputs by name, and what each output must be

_Key = tuple[int, tuple[tuple[str, int], ...], str, str, int]
# With their bytes, the oldest first; an op that is kept keeps its id.
_kept: dict[_Key, tuple[int, Op, list[Case]]] = {}


def cases(op: Op, dims: Dims, real: np.dtype, name: str, seed: int) -> Iterable[Case]:
    """Inputs with what to expect of them: with all arguments, then without any of the optional
    ones, in every combination, for the op's case of that name. The arrays cannot be written to."""
    key = (id(op), tuple(dims.items()), real.name, name, seed)
    size = BYTES * sum(math.prod(arg.resolve_shape(dims)) for arg in op.args)
    size <<= sum(arg.optional for arg in op.args)
    if size > MOST_KEPT:
        return _make(op, dims, real, name, seed)  # its parts need not be in memory together
    known = _kept.pop(key, None)
    _kept[key] = known or (size, op, [*_make(op, dims, real, name, seed)])  # now the newest
    while sum(bytes for bytes, *_ in _kept.values()) > MOST_KEPT:
        del _kept[next(iter(_kept))]
    return _kept[key][2]


def _make(op: Op, dims: Dims, real: np.dtype, name: str, seed: int) -> Iterator[Case]:
    values = make_inputs(op, dims, real, np.random.default_rng(seed), name)
    for array in values.values():
        array.flags.writeable = False
    optional = [arg.name for arg in op.args if arg.optional]
    for count in range(len(optional) + 1):
        for left_out in itertools.combinations(optional, count):
            given = {name: value for name, value in values.items() if name not in left_out}
            constants = scalars(op, name, dims)
            yield given, expect(op, dims, real, given, constants, case_of(op, name).finite)
