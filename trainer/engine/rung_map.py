"""Which rung a call runs: that of its op, or that of its op at some shapes.

    {"matmul.forward": ping_pong, "matmul.forward@C:3072,OC:768": tile_shape}

A key is an op, or an op and some dimensions with their sizes. Of the keys that a call matches, the
one with the most dimensions decides. `--rung`, rungs.json and checkpoints have the same keys.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TypeVar

from ladder.core.contract.op import Dims, key_of, split_key
from ladder.core.contract.rung_file import Rung
from trainer.model.calls import Call

Shape = tuple[tuple[str, int], ...]  # the items of a call's dimensions
T = TypeVar("T")


def shape_of(call: Call) -> Shape:
    return tuple(call.dims.items())


def op_of(key: str) -> str:
    return split_key(key)[0]


def ops_of(keys: Iterable[str]) -> set[str]:
    return {op_of(key) for key in keys}


def matches(key: str, op: str, dims: Dims) -> bool:
    named, sizes = split_key(key)
    return named == op and sizes.items() <= dims.items()


def names_any(key: str, calls: Iterable[Call]) -> bool:
    return any(matches(key, call.op, call.dims) for call in calls)


def key_for(keys: Iterable[str], op: str, dims: Dims) -> str | None:
    """The key that decides about a call; of several with as many dimensions, the first."""
    named = [key for key in keys if key.startswith(op) and matches(key, op, dims)]
    return max(named, key=lambda key: key.count(":"), default=None)


def rung_of(rungs: Mapping[str, T], call: Call) -> T:
    """What decides about a call. Raises KeyError where nothing does."""
    return rungs[key_for(rungs, call.op, call.dims) or call.op]


def with_rung(rungs: Mapping[str, Rung], op: str, rung: Rung) -> dict[str, Rung]:
    """The same rungs, but this one for all calls of an op."""
    return {key: other for key, other in rungs.items() if op_of(key) != op} | {op: rung}


def keys_of(
    op: str, rungs: Mapping[Shape, Rung], counts: Mapping[Shape, int]
) -> dict[str, list[Shape]]:
    """The fewest keys that tell the rungs of an op's shapes apart, and the shapes of each.

    The op alone stands for the rung of most shapes, and of most calls, which `counts` has. The
    others are named by the dimensions in which shapes differ: calls of another batch size match
    them, too.
    """
    weight = Counter[str]()
    for shape, rung in rungs.items():
        weight[rung.id] += sum(counts.values()) + counts[shape]  # shapes first, then calls
    most = max(weight, key=weight.__getitem__)
    sizes = {pair for shape in rungs for pair in shape}
    differ = Counter(name for name, _ in sizes)  # how many sizes a dimension has
    keys: dict[str, list[Shape]] = {}
    for shape, rung in rungs.items():
        own = {} if rung.id == most else {n: size for n, size in shape if differ[n] > 1}
        keys.setdefault(key_of(op, own), []).append(shape)
    return keys
