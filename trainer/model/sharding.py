"""How the ranks of a data parallel group share the exchange of gradients and the optimizer's work.

All parameters lie one after the other in one vector, and all gradients in another. The order is
that in which the backward pass is done with the gradients, so the vector falls into **buckets**:
what is final early is exchanged early, while the backward pass goes on (Li et al. 2020, PyTorch
Distributed: Experiences on Accelerating Data Parallel Training). With much work in the pass, the
gradients of several buckets are exchanged together; their weights are not.

ZeRO stage 1 cuts each bucket into as many equal shares as there are ranks, and rank r updates share
r of every bucket alone. So the moments and the master copies of a share exist on one rank only
(Rajbhandari et al. 2020, ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, its
stage "os"). A cut may go through the middle of a tensor: AdamW treats every element by itself.
"""

import bisect
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ladder.core.contract.expressions import ceil_div
from trainer.model.calls import Call, Ref
from trainer.model.model_config import ModelConfig

# Tensors and shares start at a multiple of so many elements: of 256 bytes, as kernels expect it of
# every buffer, in all types that there are.
ALIGNMENT = 128

# A bucket is exchanged beside the next call of one of these ops. They have many blocks of short
# work, so that the rest of the GPU takes over what the SMs that exchange cannot do. A persistent
# kernel, as most matrix products are, deals its tiles out beforehand, one block for each SM: where
# one block has to wait for an SM, the whole kernel waits for it.
BESIDE = frozenset({"attention.backward", "attention_dropout.backward"})

# At least so many gradients are exchanged together, 25 MiB as in PyTorch: each exchange costs some
# microseconds before its first byte arrives, so many small ones take longer than a few large ones.
# But a large one outlasts the call beside which it begins.
LEAST = 25 * 2**20 // 4

# For each token of a micro-batch, so many gradients are exchanged together, if these are more: the
# attention beside them takes about as long as their exchange.
PER_TOKEN = 1600

# So many new weights, of one bucket or several, are sent together. AdamW works on all buckets one
# after the other, so larger exchanges than those of gradients have something beside them.
LEAST_GATHERED = 4 * LEAST


@dataclass(frozen=True)
class Sharding:
    """Rank `rank` of `size`.

    stage     1 for ZeRO-1; 0: every rank updates all parameters
    overlaps  whether gradients are exchanged while the backward pass goes on, and weights during
              the update; otherwise behind them
    """

    rank: int = 0
    size: int = 1
    stage: int = 0
    overlaps: bool = False

    @property
    def cuts(self) -> bool:
        """Whether a rank updates only its share of the parameters."""
        return self.size > 1 and self.stage == 1

    @property
    def shares(self) -> int:
        """The number of shares that a bucket is cut into."""
        return self.size if self.cuts else 1

    @property
    def share(self) -> int:
        """The share that this rank updates."""
        return self.rank if self.cuts else 0


WHOLE = Sharding()  # one process, which updates all parameters


@dataclass(frozen=True)
class Slice:
    """A tensor, a layer of a stacked one, or a part of these, in the vector of all.

    first  its first element, as an element of the tensor
    start  the same element in the vector
    """

    name: str
    first: int
    start: int
    count: int

    @property
    def end(self) -> int:
        return self.start + self.count

    def within(self, start: int, end: int) -> "Slice | None":
        """The part of it from `start` to before `end` in the vector; None if there is none."""
        begin, end = max(start, self.start), min(end, self.end)
        if begin >= end:
            return None
        return Slice(self.name, self.first + begin - self.start, begin, end - begin)


Group = list[Slice]  # that are complete before the same call


@dataclass(frozen=True)
class Bucket:
    """A part of the vector that ranks share.

    after   how many calls of the backward pass come before the exchange of its gradients. Those of
            buckets that have the same number are exchanged together
    slices  of whole tensors and layers, those with weight decay first
    """

    start: int
    size: int
    after: int
    slices: tuple[Slice, ...]


@dataclass(frozen=True)
class Vector:
    """The vector of all parameters, or of all gradients. `shares`: of each bucket."""

    buckets: tuple[Bucket, ...]
    shares: int

    @property
    def size(self) -> int:
        last = self.buckets[-1]
        return last.start + last.size

    def slices(self, name: str) -> list[Slice]:
        slices = [s for bucket in self.buckets for s in bucket.slices if s.name == name]
        return sorted(slices, key=lambda s: s.first)

    def pieces(self, share: int, name: str) -> list[tuple[Slice, int]]:
        """What of a tensor is in a share, in the tensor's order; with the place of each piece in an
        array that holds only that share, of all buckets one after the other."""
        pieces: list[tuple[Slice, int]] = []
        for bucket in self.buckets:
            start, place = share_of(bucket, share, self.shares)
            end = start + bucket.size // self.shares
            pieces += [
                (piece, place + piece.start - start)
                for whole in bucket.slices
                if whole.name == name and (piece := whole.within(start, end))
            ]
        return sorted(pieces, key=lambda pair: pair[0].first)


def share_of(bucket: Bucket, share: int, shares: int) -> tuple[int, int]:
    """Where a share of a bucket starts: in the vector, and in an array that holds only that share,
    of all buckets."""
    return bucket.start + share * (bucket.size // shares), bucket.start // shares


def whole(config: ModelConfig) -> Vector:
    """The vector of a process alone: one bucket, in which no tensor is cut."""
    slices = [
        Slice(name, 0, 0, math.prod(parameter.shape))
        for name, parameter in config.parameters().items()
    ]
    return Vector((_bucket(config, slices, 0, 0, 1),), 1)


def cut(config: ModelConfig, backward: Sequence[Call], sharding: Sharding) -> Vector:
    """The vector of a model's parameters for the calls of its backward pass. Unless the exchange
    overlaps, it is one bucket."""
    shares = sharding.shares
    final: dict[Ref, int] = {}  # calls until the gradient changes no more
    for number, call in enumerate(backward, 1):
        final |= dict.fromkeys((ref for ref in call.args if ref is not None), number)
    beside = BESIDE if sharding.overlaps else ()
    places = [i for i, call in enumerate(backward) if call.op in beside] + [len(backward)]
    groups: dict[int, Group] = {place: [] for place in places}
    parameters = config.parameters()
    for name, parameter in parameters.items():
        layers = parameter.shape[0] if parameter.stacked else 1
        count = math.prod(parameter.shape) // layers
        for layer in range(layers):
            done = final["d" + name, layer if parameter.stacked else None]
            place = places[bisect.bisect_left(places, done)]
            groups[place].append(Slice(name, layer * count, 0, count))
    buckets: list[Bucket] = []
    # The gradients whose exchange takes about as long as the call beside which it goes.
    tokens = [call.dims["B"] * call.dims["T"] for call in backward if call.op in BESIDE]
    enough = max(LEAST, PER_TOKEN * max(tokens, default=0))
    for place, gathered in _gathered(groups, enough):
        for slices in _parts(gathered, min(enough, LEAST_GATHERED)):
            start = buckets[-1].start + buckets[-1].size if buckets else 0
            buckets.append(_bucket(config, slices, start, place, shares))
    return Vector(tuple(buckets), shares)


def _gathered(groups: Mapping[int, Group], enough: int) -> list[tuple[int, list[Group]]]:
    """For each exchange its place and the groups that it takes, of groups by place.

    The last place has an exchange of its own. The others are gathered from the back, so that each
    exchange goes as late as it can: links that sleep leave their power to the SMs.
    """
    *early, last = groups
    exchanges = [(last, [groups[last]])]
    size = enough  # of the exchange for which groups are gathered: the last one is complete
    for place in reversed(early):
        if not groups[place]:
            continue
        if size >= enough:
            exchanges.append((place, []))
            size = 0
        exchanges[-1][1].insert(0, groups[place])
        size += _size(groups[place])
    if size < LEAST:  # too small for an exchange of its own
        _, few = exchanges.pop()
        exchanges[-1][1][0][:0] = itertools.chain(*few)
    return exchanges[::-1]


def _parts(groups: Sequence[Group], least: int) -> list[Group]:
    """The groups of an exchange as buckets of at least so many elements, from the back."""
    parts: list[Group] = [[]]
    for group in reversed(groups):
        if _size(parts[0]) >= least:
            parts.insert(0, [])
        parts[0] = [*group, *parts[0]]
    return parts


def _size(slices: Group) -> int:
    return sum(piece.count for piece in slices)


def _bucket(
    config: ModelConfig, slices: Sequence[Slice], start: int, after: int, shares: int
) -> Bucket:
    """The bucket of these slices, wherever they start now; those with weight decay come first."""
    parameters = config.parameters()
    placed, end = [], start
    for piece in sorted(slices, key=lambda piece: not parameters[piece.name].decay):
        placed.append(replace(piece, start=end))
        end += ceil_div(piece.count, ALIGNMENT) * ALIGNMENT
    size = ceil_div(end - start, shares * ALIGNMENT) * shares * ALIGNMENT
    return Bucket(start, size, after, tuple(placed))
