"""The update of the parameters, as the program of any model does it: the buffers that it needs, and
its calls.

All parameters are one vector and all gradients another. A process alone computes the gradients'
norm, and calls AdamW twice: for the parameters with weight decay, and for those without. Where
several ranks train together, the vectors fall into buckets (sharding.py):

    for each bucket     sum of the gradients over all ranks -> norm of the own share
    for all             all-gather of the norms -> norm of these
    for each bucket     AdamW on the own share -> all-gather of the parameters

The sum is a reduce-scatter where ranks share the update. Where each updates all parameters, it is
an all-reduce, a rank's share is the whole bucket, and nothing is gathered.
"""

import itertools
import math
from collections.abc import Mapping, Sequence

from trainer.model.calls import (
    Buffer,
    Call,
    CallList,
    Collective,
    Fork,
    Item,
    Join,
    Kind,
    Piece,
    op_calls,
)
from trainer.model.model_config import ModelConfig
from trainer.model.sharding import LEAST_GATHERED, Bucket, Sharding, Slice, Vector, share_of

# Streams of random words: a model's dropouts count from 0, the rounding of weights from here, in
# the order of the model's parameters.
ROUNDING_STREAMS = 1 << 31

# So many calls before the backward pass ends, ranks without overlap exchange a few bytes that
# nobody needs. NVLink sleeps when it has nothing to do, and takes 0.2 ms to wake; if it were always
# awake, it would take power from the SMs (doc/results/scaling.md).
WAKE = 10

MOMENTS = (".m", ".v")
MASTER = ".master"


# last_backward, reduce and apply of a `Program`.
Update = tuple[tuple[Item, ...], tuple[Item, ...], tuple[Item, ...]]


def add_vectors(
    buffers: dict[str, Buffer],
    config: ModelConfig,
    master_weights: bool,
    sharding: Sharding,
    vector: Vector,
) -> None:
    """Parameters and gradients as vectors, and their tensors as parts of these; moments and master
    copies of the rank's own share. For several ranks, the buckets, too."""
    states = {**dict.fromkeys(MOMENTS, "moment"), **({MASTER: "master"} if master_weights else {})}
    count, shares, share = len(vector.buckets), sharding.shares, sharding.share
    buffers["hyper"] = Buffer((9,), "float32", "input")
    buffers["norm"] = Buffer((1,), "float32", "activation")
    buffers["parameters"] = Buffer((vector.size,), "real", "parameter")
    buffers["gradients"] = Buffer((vector.size,), "float32", "gradient")
    for suffix, kind in states.items():
        buffers["share" + suffix] = Buffer((vector.size // shares,), "float32", kind)
    for name, parameter in config.parameters().items():
        whole = [(piece, piece.start) for piece in vector.slices(name)]
        for own, host in ((name, "parameters"), ("d" + name, "gradients")):
            buffers[own] = _part(buffers, host, parameter.shape, whole, parameter.stacked)
        for suffix in states:
            pieces = vector.pieces(share, name)
            buffers[name + suffix] = _part(buffers, "share" + suffix, parameter.shape, pieces)
    if sharding.size == 1:
        return
    buffers["norms"] = Buffer((shares * count,), "float32", "activation")
    for index, bucket in enumerate(vector.buckets):
        start, _ = share_of(bucket, share, shares)
        size = bucket.size // shares
        for name, host, begin, length in (
            (f"parameters.{index}", "parameters", bucket.start, bucket.size),
            (f"gradients.{index}", "gradients", bucket.start, bucket.size),
            (f"share.{index}", "gradients", start, size),
            (f"norm.{index}", "norms", share * count + index, 1),
        ):
            dtype, kind = buffers[host].dtype, buffers[host].kind
            buffers[name] = Buffer((length,), dtype, kind, inside=(host, begin))


def _part(
    buffers: Mapping[str, Buffer],
    host: str,
    shape: tuple[int, ...],
    slices: Sequence[tuple[Slice, int]],
    stacked: bool = False,
) -> Buffer:
    """A tensor whose slices lie in the buffer `host`, each with its place there."""
    dtype, kind = buffers[host].dtype, buffers[host].kind
    if len(slices) == 1 and slices[0][0].count == math.prod(shape):
        return Buffer(shape, dtype, kind, stacked, inside=(host, slices[0][1]))
    pieces = tuple(Piece(piece.first, piece.count, host, place) for piece, place in slices)
    return Buffer(shape, dtype, kind, stacked, pieces=pieces)


def behind(
    config: ModelConfig,
    buffers: dict[str, Buffer],
    backward: tuple[Item, ...],
    stochastic_rounding: bool,
    sharding: Sharding,
    vector: Vector,
) -> Update:
    """What comes behind the backward pass, of a process alone or of one of several ranks. Adds the
    buffers that AdamW works on.

    Raises ValueError where random words cannot count from within a tensor.
    """
    clip, count, shares = CallList(buffers), len(vector.buckets), sharding.shares
    updates = [
        _updates(config, buffers, bucket, sharding, stochastic_rounding)
        for bucket in vector.buckets
    ]
    if sharding.size == 1:
        clip.call("clip", "global_norm.forward", {"N": vector.size}, "norm gradients")
        return backward, tuple(clip.calls), tuple(*updates)
    norms = CallList(buffers)
    for index, bucket in enumerate(vector.buckets):
        size = {"N": bucket.size // shares}
        norms.call("clip", "global_norm.forward", size, f"norm.{index} share.{index}")
    clip.call("clip", "global_norm.forward", {"N": shares * count}, "norm norms")
    gathered = (Collective("all_gather", ("norms",)),) if sharding.cuts else ()
    return (
        _with_sums(backward, norms.calls, sharding, vector),
        (*gathered, *clip.calls),
        _with_gathers(buffers, updates, sharding),
    )


def _with_sums(
    backward: tuple[Item, ...], norms: Sequence[Call], sharding: Sharding, vector: Vector
) -> tuple[Item, ...]:
    """The backward pass, with the exchange of all buckets and the norm of the own share of each."""
    kind: Kind = "reduce_scatter" if sharding.cuts else "all_reduce"
    names = tuple(f"gradients.{index}" for index in range(len(vector.buckets)))
    if not sharding.overlaps:
        woken = _with_wake(backward) if sharding.cuts else backward
        return (*woken, Collective(kind, names), *norms)
    items: list[Item] = []
    waiting: dict[int, list[int]] = {}  # buckets, by the calls before their exchange
    for index, bucket in enumerate(vector.buckets):
        waiting.setdefault(bucket.after, []).append(index)
    gradients: Fork | None = None  # the last ones that are forked off the pass
    done = 0
    for item in backward:
        items.append(item)
        gradients = item if isinstance(item, Fork) else gradients
        done += len([*op_calls([item])])
        if ready := waiting.pop(done, None):
            collective = Collective(kind, tuple(names[index] for index in ready))
            sizes = [norms[index] for index in ready]
            exchanged = Fork((collective, *sizes), urgent=True, behind=gradients)
            items.append(exchanged)
    return (*items, Join(exchanged))


def _with_wake(backward: tuple[Item, ...]) -> tuple[Item, ...]:
    """The backward pass, with an exchange near its end that wakes the links between ranks. The
    norms that it gathers are overwritten behind the pass."""
    first = max(len(backward) - WAKE, 0)
    woken = Fork((Collective("all_gather", ("norms",)),), urgent=True)
    return (*backward[:first], woken, *backward[first:], Join(woken))


def _with_gathers(
    buffers: Mapping[str, Buffer], updates: Sequence[Sequence[Call]], sharding: Sharding
) -> tuple[Item, ...]:
    """AdamW on the own share of every bucket, whose new weights go to all ranks. The last bucket,
    which holds the token table, is updated first: the exchange of those that are updated last has
    nothing beside it, so these should be smaller ones."""
    names = tuple(f"parameters.{bucket}" for bucket in reversed(range(len(updates))))
    updates = updates[::-1]
    if not sharding.cuts:
        return tuple(itertools.chain(*updates))
    if not sharding.overlaps:
        return (*itertools.chain(*updates), Collective("all_gather", names))
    items: list[Item] = []
    waiting: list[str] = []
    for name, update in zip(names, updates, strict=True):
        items += update
        waiting.append(name)
        size = sum(math.prod(buffers[waits].shape) for waits in waiting)
        if size >= LEAST_GATHERED or name == names[-1]:
            gathered = Fork((Collective("all_gather", tuple(waiting)),), urgent=True)
            items.append(gathered)
            waiting = []
    return (*items, Join(gathered))


def _updates(
    config: ModelConfig,
    buffers: dict[str, Buffer],
    bucket: Bucket,
    sharding: Sharding,
    stochastic_rounding: bool,
) -> list[Call]:
    """AdamW on the own share of a bucket. Adds the buffers that it works on."""
    calls, parameters = CallList(buffers), config.parameters()
    for run in _runs(config, bucket, sharding, merge=not stochastic_rounding):
        name, first = run[0].name, run[0].first
        if stochastic_rounding and first % 4:
            raise ValueError(
                f"{name}: a layer of it has a number of elements that 4 does not divide, as "
                "rounding at random on several ranks needs it"
            )
        weight, gradient, m, v, master = _add_run(buffers, bucket, sharding, run)
        args = (weight, m, v, master if master in buffers else "-", gradient, "norm", "hyper")
        rng = "rng" if stochastic_rounding else "-"
        stream = ROUNDING_STREAMS + list(parameters).index(name)
        scalars = {"decay": float(parameters[name].decay), "stream": stream, "first": first}
        where = " ".join(dict.fromkeys(piece.name for piece in run))
        size = {"N": run[-1].end - run[0].start}
        calls.call(where, "adamw.update", size, " ".join((*args, rng)), **scalars)
    return calls.calls


def _runs(
    config: ModelConfig, bucket: Bucket, sharding: Sharding, merge: bool
) -> list[list[Slice]]:
    """What one call of AdamW updates in the own share of a bucket: a slice, or, to `merge`, all
    neighbours with the same decay."""
    start, _ = share_of(bucket, sharding.share, sharding.shares)
    end = start + bucket.size // sharding.shares
    pieces = [piece for whole in bucket.slices if (piece := whole.within(start, end))]
    if not merge:
        return [[piece] for piece in pieces]
    parameters = config.parameters()
    runs = itertools.groupby(pieces, key=lambda piece: parameters[piece.name].decay)
    return [list(run) for _, run in runs]


def _add_run(
    buffers: dict[str, Buffer], bucket: Bucket, sharding: Sharding, run: Sequence[Slice]
) -> list[str]:
    """Add the buffers of a run of slices, with the padding between them, which is 0 and stays so:
    weight, gradient, moments, master copy. Returns their names."""
    start, count = run[0].start, run[-1].end - run[0].start
    own, place = share_of(bucket, sharding.share, sharding.shares)
    place += start - own
    hosts = {"parameters": start, "gradients": start}
    hosts |= {"share" + state: place for state in (*MOMENTS, MASTER)}
    for host, begin in hosts.items():
        if (whole := buffers.get(host)) is not None:  # there may be no master copy
            part = Buffer((count,), whole.dtype, whole.kind, inside=(host, begin))
            buffers[f"{host}@{start}"] = part
    return [f"{host}@{start}" for host in hosts]
