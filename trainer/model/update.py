"""The update of the parameters, as the program of any model does it: the buffers that it needs, and
its calls. `reduce_calls` make the gradients' norm, `apply_calls` take the step of AdamW.

Where several ranks train together, both contain what they exchange. Without sharding that is one
all-reduce, and every rank does the same update. With it (sharding.py):

    reduce   reduce-scatter of the gradients -> norm of the own share -> all-gather of the norms
    apply    AdamW on the pieces of tensors in the own share -> all-gather of the parameters
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from trainer.model.calls import Buffer, Call, CallList, Exchange
from trainer.model.model_config import ModelConfig
from trainer.model.sharding import Sharding, pieces, share_size, starts

# Streams of random words: a model's dropouts count from 0, the rounding of weights from here, in
# the order of the model's parameters.
ROUNDING_STREAMS = 1 << 31


def add_whole(buffers: dict[str, Buffer], config: ModelConfig, master_weights: bool) -> None:
    """Gradients, as parts of one vector so that their norm is one call; moments; master copies."""
    buffers["hyper"] = Buffer((9,), "float32", "input")
    buffers["norm"] = Buffer((1,), "float32", "activation")
    start = 0
    for name, parameter in config.parameters().items():
        shape, inside = parameter.shape, ("gradients", start)
        buffers["d" + name] = Buffer(shape, "float32", "gradient", parameter.stacked, inside)
        buffers[name + ".m"] = Buffer(shape, "float32", "moment")
        buffers[name + ".v"] = Buffer(shape, "float32", "moment")
        if master_weights:
            buffers[name + ".master"] = Buffer(shape, "float32", "master")
        start += math.prod(shape)
    buffers["gradients"] = Buffer((start,), "float32", "gradient")


def add_share(
    buffers: dict[str, Buffer], config: ModelConfig, master_weights: bool, sharding: Sharding
) -> None:
    """The same for one rank: the parameters, too, are parts of one vector, whose shares the ranks
    exchange; moments and master copies are those of the rank's own share."""
    share = share_size(config, sharding.size)
    whole = (sharding.size * share,)
    buffers["hyper"] = Buffer((9,), "float32", "input")
    buffers["norm"] = Buffer((1,), "float32", "activation")
    buffers["norms"] = Buffer((sharding.size,), "float32", "activation")
    buffers["norms.own"] = Buffer((1,), "float32", "activation", inside=("norms", sharding.rank))
    buffers["parameters"] = Buffer(whole, "real", "parameter")
    buffers["gradients"] = Buffer(whole, "float32", "gradient")
    own = ("gradients", sharding.rank * share)
    buffers["gradients.own"] = Buffer((share,), "float32", "gradient", inside=own)
    start_of = starts(config)
    for name, parameter in config.parameters().items():
        shape, stacked, start = parameter.shape, parameter.stacked, start_of[name]
        inside = ("parameters", start)
        buffers[name] = Buffer(shape, "real", "parameter", stacked, inside)
        buffers["d" + name] = Buffer(shape, "float32", "gradient", stacked, ("gradients", start))
    for name, first, count in pieces(config, sharding):
        at = start_of[name] + first
        piece = Buffer((count,), "real", "parameter", inside=("parameters", at), first=first)
        buffers[name + ".own"] = piece
        gradient = Buffer((count,), "float32", "gradient", inside=("gradients", at), first=first)
        buffers["d" + name + ".own"] = gradient
        for moment in (".m", ".v"):
            buffers[name + moment] = Buffer((count,), "float32", "moment", first=first)
        if master_weights:
            buffers[name + ".master"] = Buffer((count,), "float32", "master", first=first)


def reduce_calls(buffers: Mapping[str, Buffer], sharding: Sharding) -> tuple[Call | Exchange, ...]:
    """Local gradients to those of the whole group, as far as this rank needs them, and the norm of
    all of them."""
    calls = CallList(buffers)
    if not sharding.cuts:
        count = math.prod(buffers["gradients"].shape)
        calls.call("clip", "global_norm.forward", {"N": count}, "norm gradients")
        summed = (Exchange("all_reduce", "gradients"),) if sharding.size > 1 else ()
        return (*summed, *calls.calls)
    share = math.prod(buffers["gradients.own"].shape)
    calls.call("clip own", "global_norm.forward", {"N": share}, "norms.own gradients.own")
    calls.call("clip", "global_norm.forward", {"N": sharding.size}, "norm norms")  # of the norms
    of_share, of_all = calls.calls
    scattered, gathered = Exchange("reduce_scatter", "gradients"), Exchange("all_gather", "norms")
    return scattered, of_share, gathered, of_all


def apply_calls(
    config: ModelConfig,
    buffers: Mapping[str, Buffer],
    master_weights: bool,
    stochastic_rounding: bool,
    sharding: Sharding,
) -> tuple[Call | Exchange, ...]:
    """One step of AdamW."""
    calls = CallList(buffers)
    parameters = config.parameters()
    rng = "rng" if stochastic_rounding else "-"
    streams = {name: ROUNDING_STREAMS + index for index, name in enumerate(parameters)}
    own = ".own" if sharding.cuts else ""
    whole = ((name, 0, math.prod(p.shape)) for name, p in parameters.items())
    for name, _, count in pieces(config, sharding) if sharding.cuts else whole:
        master = name + ".master" if master_weights else "-"
        args = f"{name}{own} {name}.m {name}.v {master} d{name}{own} norm hyper {rng}"
        scalars = {"decay": float(parameters[name].decay), "stream": streams[name]}
        calls.call(name, "adamw.update", {"N": count}, args, **scalars)
    gathered = (Exchange("all_gather", "parameters"),) if sharding.cuts else ()
    return (*calls.calls, *gathered)
