"""Crossentropy: minus the logarithm of the probability that the model gave to the next token.

`dloss` is the gradient of each row's loss: 1 / (rows * accumulation steps), times the loss scale in
float16 runs. It is a buffer because the loss scale may change while a captured graph is replayed.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import Case, Dims, Op, read, shapes, update, write
from ladder.softmax import ops as softmax
from reference import crossentropy


def inputs(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Targets within the vocabulary, and rows of probabilities that sum to 1."""
    return {**softmax.backward_inputs(dims, rng), **fused_inputs(dims, rng)}


def fused_inputs(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        "targets": rng.integers(0, dims["V"], dims["N"]),
        "dloss": np.array([1 / dims["N"]]),
    }


def huge(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Logits whose exponentials overflow unless the row's maximum is subtracted first."""
    return {
        **fused_inputs(dims, rng),
        "logits": 1000 * rng.standard_normal((dims["N"], dims["Vp"])),
    }


def at_the_edges(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Targets that are the first and the last token."""
    return {"targets": np.where(np.arange(dims["N"]) % 2, dims["V"] - 1, 0)}


def unlikely(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Targets to which the model gave hardly any probability, none, or what is not a number."""
    values, rows = inputs(dims, rng), np.arange(dims["N"])
    probs = np.resize(values["probs"], (dims["N"], dims["V"]))
    probs[rows, values["targets"]] = np.resize([1e-8, 1e-30, 1e-4, 0, 1e-16, np.nan], rows.size)
    return {"probs": probs, "targets": values["targets"]}


def far_away(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    logits = np.zeros((dims["N"], dims["Vp"]))
    logits[:, : dims["V"]] = softmax.far_away(dims, rng)
    return {"logits": logits}


def loss_scale(scale: float) -> Case:
    """The loss is multiplied by `scale`; 0 as in a validation before the first step."""
    return Case(lambda dims, rng: {"dloss": np.array([scale / dims["N"]])})


def fused_cancels(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The logit of the target is subtracted from one like it: with one token, nothing is left. And
    1 is subtracted from the target's probability, which may be nearly 1."""
    targets = arrays["targets"].astype(int)
    at = np.arange(targets.size), targets
    ones = np.zeros(arrays["logits"].shape)
    ones[at] = np.abs(arrays["dloss"])
    return {"losses": np.abs(arrays["logits"][at]), "logits": ones}


EDGES = {"first and last token": Case(at_the_edges)}
UNLIKELY = {"unlikely tokens": Case(unlikely, hard=True, finite=False)}
SCALES = {f"loss scale {scale}": loss_scale(scale) for scale in (0, 1024)}

forward = Op(
    name="crossentropy.forward",
    summary="losses = -log(probs[target]), row by row",
    args=(
        write("losses", "N", "float32"),
        read("probs", "N V"),
        read("targets", "N", "int32"),
    ),
    reference=crossentropy.forward,
    flops=lambda d: d["N"],
    bytes=lambda d, real: d["N"] * (4 + 4 + real.itemsize),
    cases={**EDGES, **UNLIKELY},
    shapes=softmax.SHAPES,
    bench={"B*T=4096": {"N": 4096, "V": 50257}},
    make_inputs=inputs,
)

backward = replace(
    forward,
    name="crossentropy.backward",
    summary="dprobs = -dloss / probs at the target, 0 elsewhere",
    args=(write("dprobs", "N V"), *forward.args[1:], read("dloss", "1", "float32")),
    reference=crossentropy.backward,
    bytes=lambda d, real: d["N"] * (4 + real.itemsize + d["V"] * real.itemsize) + 4,
    cases={**EDGES, **UNLIKELY, "loss scale 0": loss_scale(0)},
)

fused = Op(
    name="crossentropy.fused",
    summary="softmax and crossentropy, forward and backward: logits become dlogits in place",
    args=(
        write("losses", "N", "float32", terms="V"),
        update("logits", "N Vp", terms="V"),
        read("targets", "N", "int32"),
        read("dloss", "1", "float32"),
    ),
    fits=("V <= Vp",),
    reference=crossentropy.fused,
    flops=lambda d: 7 * d["N"] * d["V"],
    shapes=shapes(
        "N V Vp", (1, 1, 1), (3, 31, 31), (5, 33, 64), (2, 1009, 1024), (2, 50257, 50304)
    ),
    also=({"N": 2, "V": 1032, "Vp": 1032},),  # rows without padding
    bench={
        "B*T=65536": {"N": 65536, "V": 50257, "Vp": 50304},
        "B*T=4096": {"N": 4096, "V": 50257, "Vp": 50304},
        "B*T=16384 V=65": {"N": 16384, "V": 65, "Vp": 128},  # the character models'
    },
    make_inputs=fused_inputs,
    cancels=fused_cancels,
    cases={
        **EDGES,
        **SCALES,
        "huge logits": Case(huge, hard=True),
        "logits far from 0, or equal": Case(far_away, hard=True),
    },
)

LADDERS = (Ladder(forward), Ladder(backward), Ladder(fused))
