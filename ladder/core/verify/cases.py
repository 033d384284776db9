"""What a rung is compared with: inputs, and the float64 reference's outputs for them.

All rungs of a ladder are compared with the same cases, and the reference in float64 takes longer
than any kernel. So the cases that were used last are kept, as long as they fit into `MOST_KEPT`.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from ladder.core.contract.op import Dims, Op
from ladder.core.verify.inputs import Arrays, case_of, make_inputs, scalars
from ladder.core.verify.tolerance import Expected, expect

MOST_KEPT = 2 << 30  # bytes

Case = tuple[Arrays, list[Expected]]  # inputs by name, and what each output must be

_Key = tuple[int, tuple[tuple[str, int], ...], str, str, int]
_kept: dict[_Key, tuple[Op, list[Case]]] = {}  # the oldest first; an op that is kept keeps its id


def cases(op: Op, dims: Dims, real: np.dtype, name: str, seed: int) -> Iterator[Case]:
    """Inputs with what to expect of them: with all arguments, then without any of the optional
    ones, in every combination, for the op's case of that name. The arrays cannot be written to."""
    key = (id(op), tuple(dims.items()), real.name, name, seed)
    if key in _kept:
        _kept[key] = _kept.pop(key)  # now the newest
        yield from _kept[key][1]
        return
    found: list[Case] | None = []
    for case in _make(op, dims, real, name, seed):
        if found is not None:
            found.append(case)
            if _bytes(found) > MOST_KEPT:
                found = None  # too large to be kept: its parts need not be in memory together
        yield case
    if found is not None:
        _kept[key] = (op, found)
        while sum(_bytes(kept) for _, kept in _kept.values()) > MOST_KEPT:
            del _kept[next(iter(_kept))]


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


def _bytes(found: Sequence[Case]) -> int:
    arrays = {
        id(array): array.nbytes
        for given, expected in found
        for array in (
            *given.values(),
            *(part for e in expected for part in (e.value, e.tolerance, e.rounded, *e.others)),
        )
        if isinstance(array, np.ndarray)
    }
    return sum(arrays.values())
