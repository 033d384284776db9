"""Crossentropy: minus the logarithm of the probability that the model gave to the next token.

`dloss` is the gradient of each row's loss: 1 / (rows * accumulation steps), times the loss scale in
float16 runs. It is a buffer because the loss scale may change while a captured graph is replayed.
"""

import numpy as np

from ladder.contract.dims import Dims
from ladder.contract.ladder import Ladder
from ladder.contract.op import Op, read, update, write
from ladder.softmax import ops as softmax
from reference import crossentropy

SHAPES = tuple(
    {"N": N, "V": V} for N, V in [(1, 1), (3, 31), (5, 33), (2, 1024), (7, 1009), (2, 50257)]
)
FUSED_SHAPES = tuple(
    {"N": N, "V": V, "Vp": Vp}
    for N, V, Vp in [(1, 1, 1), (3, 31, 31), (5, 33, 64), (2, 1009, 1024), (2, 50257, 50304)]
)
BENCH = {
    "B*T=65536": {"N": 65536, "V": 50257, "Vp": 50304},
    "B*T=4096": {"N": 4096, "V": 50257, "Vp": 50304},
}
PLAIN_BENCH = {"B*T=4096": {"N": 4096, "V": 50257}}


def inputs(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Targets within the vocabulary, and rows of probabilities that sum to 1."""
    return {
        **softmax.backward_inputs(dims, rng),
        "targets": rng.integers(0, dims["V"], dims["N"]),
        "dloss": np.array([1 / dims["N"]]),
    }


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


forward = Op(
    name="crossentropy.forward",
    summary="losses = -log(probs[target]), row by row",
    args=(
        write("losses", "N", "float32"),
        read("probs", "N V"),
        read("targets", "N", "int32"),
    ),
    dims=("N", "V"),
    reference=crossentropy.forward,
    flops=lambda d: d["N"],
    bytes=lambda d, real: d["N"] * (4 + 4 + real.itemsize),
    shapes=SHAPES,
    bench=PLAIN_BENCH,
    make_inputs=inputs,
)

backward = Op(
    name="crossentropy.backward",
    summary="dprobs = -dloss / probs at the target, 0 elsewhere",
    args=(
        write("dprobs", "N V"),
        read("probs", "N V"),
        read("targets", "N", "int32"),
        read("dloss", "1", "float32"),
    ),
    dims=("N", "V"),
    reference=crossentropy.backward,
    flops=lambda d: d["N"],
    bytes=lambda d, real: d["N"] * (4 + real.itemsize + d["V"] * real.itemsize) + 4,
    shapes=SHAPES,
    bench=PLAIN_BENCH,
    make_inputs=inputs,
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
    dims=("N", "V", "Vp"),
    reference=crossentropy.fused,
    reference_dims=("V",),
    flops=lambda d: 7 * d["N"] * d["V"],
    shapes=FUSED_SHAPES,
    bench=BENCH,
    make_inputs=fused_inputs,
    hard_inputs={"huge logits": huge},
)

LADDERS = (Ladder(forward), Ladder(backward), Ladder(fused))
