"""The parts of a model's program: named buffers, and calls of ops on them."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple


class Piece(NamedTuple):
    """`size` elements of a tensor from its element `first` on; they are those of the buffer `host`
    from its element `start` on."""

    first: int
    size: int
    host: str
    start: int


@dataclass(frozen=True)
class Buffer:
    """An array of the program.

    dtype    "real" (the run's), "float32", "int32" or "uint32"
    kind     "parameter", "gradient", "moment", "master", "input", "activation", "cache" or
             "scratch"
    stacked  the first dimension counts layers, and a call in a layer takes its slice
    inside   (name, start): the buffer is a part of another one, from that element on
    pieces   the buffer is a tensor that does not lie in one place: these parts of it, in its order,
             lie in other buffers; what is missing is in the memory of other ranks. A stacked
             buffer has a piece for each layer
    """

    shape: tuple[int, ...]
    dtype: str
    kind: str
    stacked: bool = False
    inside: tuple[str, int] | None = None
    pieces: tuple[Piece, ...] | None = None


Ref = tuple[str, int | None]  # a buffer, or one layer of a stacked one


@dataclass(frozen=True, eq=False)
class Call:
    """One op call: `args` in the order of the op's contract; `where` is its place in the model."""

    op: str
    args: tuple[Ref | None, ...]
    dims: Mapping[str, int]
    scalars: Mapping[str, float]
    where: str


Kind = Literal["all_reduce", "reduce_scatter", "all_gather"]


@dataclass(frozen=True, eq=False)
class Collective:
    """What the ranks of a group do together with buffers, each with its own copy, in place.

    all_reduce      a buffer becomes the sum over all ranks
    reduce_scatter  share r of it, of as many equal shares as there are ranks, becomes on rank r the
                    sum over all ranks; the rest is undefined from then on
    all_gather      share r of it becomes on all ranks what it is on rank r
    """

    kind: Kind
    buffers: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Fork:
    """Calls that begin when those before them in a list are done, and go on beside those behind
    them, up to a `Join`, which every list has for its last fork. The urgent forks run one after the
    other, and so do the rest. What they work on must be left alone by the calls beside them.

    urgent  they go first where the device cannot do both: other ranks wait for them
    behind  an earlier fork that must be done, too, when these begin
    """

    calls: tuple[Call | Collective, ...]
    urgent: bool = False
    behind: "Fork | None" = None


@dataclass(frozen=True, eq=False)
class Join:
    """The calls behind it begin when those of `fork` are done, and those of earlier forks of its
    stream: the urgent ones, or the rest."""

    fork: Fork


Item = Call | Collective | Fork | Join  # of a list of what is to be done


def in_order(items: Iterable[Item]) -> Iterator[Call | Collective]:
    """All calls and collectives of a list, those of a fork in its place."""
    for item in items:
        if not isinstance(item, Join):
            yield from item.calls if isinstance(item, Fork) else (item,)


def op_calls(items: Iterable[Item]) -> Iterator[Call]:
    return (item for item in in_order(items) if isinstance(item, Call))


class CallList:
    """Collects calls. While `layer` is a number, calls are in that layer of the model."""

    def __init__(self, buffers: Mapping[str, Buffer]):
        self.buffers = buffers
        self.calls: list[Call] = []
        self.layer: int | None = None

    def call(
        self, where: str, op: str, dims: Mapping[str, int], args: str, **scalars: float
    ) -> None:
        """Add a call. `args` names buffers, stacked ones for this layer's slice; "-" is None."""
        where = where if self.layer is None else f"h{self.layer}.{where}"
        refs = tuple(None if arg == "-" else self.ref(arg) for arg in args.split())
        self.calls.append(Call(op, refs, dims, scalars, where))

    def ref(self, name: str) -> Ref:
        return (name, self.layer if self.buffers[name].stacked else None)
