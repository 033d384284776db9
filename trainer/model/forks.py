"""The backward pass in two streams: what no later call waits for is forked off.

The gradient of a weight or bias is needed only at the end of the pass, but the gradient of an input
by the next call at once. One after the other, each kernel starts when the last block of the one
before has ended, and towards its end more and more SMs have nothing to do. With two streams, blocks
of the other stream take these SMs:

    main     input of h11.fcproj -> gelu -> input of h11.fc -> ...
    forked   bias and weight of h11.fcproj, bias and weight of h11.fc, ...

Layers share the memory for the gradients of activations. So before the main stream overwrites what
a forked call reads, it joins that call.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ladder.core.contract.ladder import find
from trainer.model.calls import Buffer, Call, Fork, Item, Join, Ref


class Access(NamedTuple):
    """A call reads or writes the elements `start` to before `end` of a buffer with memory."""

    buffer: str
    start: int
    end: int
    writes: bool

    def conflicts(self, other: "Access") -> bool:
        """Whether the order of both counts."""
        if self.buffer != other.buffer or not (self.writes or other.writes):
            return False
        return self.start < other.end and other.start < self.end


def spread(calls: Sequence[Call], buffers: Mapping[str, Buffer]) -> tuple[Item, ...]:
    """The same calls, those forked off that write nothing but gradients of parameters.

    The last call has nothing to go beside. At the end of the list, all are joined.
    """
    items: list[Item] = []
    under_way: list[tuple[Fork, list[Access]]] = []  # in order; not joined yet

    def aside(numbered: tuple[int, Call]) -> bool:
        number, call = numbered
        written = [access.buffer for access in accesses(call, buffers) if access.writes]
        gradients = all(buffers[name].kind == "gradient" for name in written)
        return gradients and number < len(calls) - 1

    for forked, group in itertools.groupby(enumerate(calls), aside):
        several = tuple(call for _, call in group)
        if forked:
            fork = Fork(several)
            items.append(fork)
            under_way.append((fork, [a for call in several for a in accesses(call, buffers)]))
            continue
        for call in several:
            own = [*accesses(call, buffers)]
            for number in reversed(range(len(under_way))):
                fork, theirs = under_way[number]
                if any(mine.conflicts(other) for mine in own for other in theirs):
                    items.append(Join(fork))
                    del under_way[: number + 1]
                    break
            items.append(call)
    return (*items, *(Join(fork) for fork, _ in under_way[-1:]))


def accesses(call: Call, buffers: Mapping[str, Buffer]) -> Iterator[Access]:
    """What a call reads and writes, by the roles of its op's arguments."""
    for arg, ref in zip(find(call.op).op.args, call.args, strict=True):
        if ref is not None:
            for name, start, end in _places(ref, buffers):
                yield Access(name, start, end, arg.role != "in")


def _places(ref: Ref, buffers: Mapping[str, Buffer]) -> Iterator[tuple[str, int, int]]:
    """The buffers with memory in which a buffer, or a layer of it, lies, with first and last
    element."""
    name, layer = ref
    buffer = buffers[name]
    if buffer.pieces is not None:
        for piece in buffer.pieces if layer is None else buffer.pieces[layer : layer + 1]:
            yield piece.host, piece.start, piece.start + piece.size
        return
    host, start = buffer.inside or (name, 0)
    size = math.prod(buffer.shape)
    if layer is not None:
        size //= buffer.shape[0]
        start += layer * size
    yield host, start, start + size
