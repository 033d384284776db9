"""The parts of a model's program: named buffers, and calls of ops on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Buffer:
    """An array of the program.

    dtype    "real" (the run's), "float32", "int32" or "uint32"
    kind     "parameter", "gradient", "moment", "master", "input", "activation" or "scratch"
    stacked  the first dimension counts layers, and a call in a layer takes its slice
    inside   (name, start): the buffer is a part of another one, from that element on
    first    the buffer holds a piece of a tensor, from this element of it on: the rest of the
             tensor is in the memory of other ranks; None: it holds the whole tensor
    """

    shape: tuple[int, ...]
    dtype: str
    kind: str
    stacked: bool = False
    inside: tuple[str, int] | None = None
    first: int | None = None


Ref = tuple[str, int | None]  # a buffer, or one layer of a stacked one


@dataclass(frozen=True, eq=False)
class Call:
    """One op call: `args` in the order of the op's contract; `where` is its place in the model."""

    op: str
    args: tuple[Ref | None, ...]
    dims: Mapping[str, int]
    scalars: Mapping[str, float]
    where: str


@dataclass(frozen=True, eq=False)
class Exchange:
    """What the ranks of a group do together with a buffer, each with its own copy, in place.

    all_reduce      the buffer becomes the sum over all ranks
    reduce_scatter  share r of it, of as many equal shares as there are ranks, becomes on rank r the
                    sum over all ranks; the rest is undefined from then on
    all_gather      share r of it becomes on all ranks what it is on rank r
    """

    kind: Literal["all_reduce", "reduce_scatter", "all_gather"]
    buffer: str


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
        """The buffer, or this layer's slice of it."""
        return (name, self.layer if self.buffers[name].stacked else None)
