"""AdamW: the update of the weights, with clipping by the global norm and decoupled decay.

`hyper` holds what changes from step to step, in the order of `reference.adamw.HYPER`. `master` is
the float32 copy of weights that are stored in 16 bits; without it `weight` itself is updated.

Weights of 16 bits are rounded to nearest. With `rng` they are rounded at random, up or down with a
probability in proportion to the distance. `rng` is the buffer that dropout reads: (seed low, seed
high, step, micro-step). Each tensor and each dropout of one step has its own `stream`. float32
weights are not rounded. The arrays may be a piece of a tensor: `first`, a multiple of four, is the
element of it that the piece starts with, and the random words count from there.
"""

from typing import Any

import numpy as np

from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import Case, Dims, MakeInputs, Op, Scalar, distinct, read, update
from reference import adamw


def hyper(**changes: Any) -> np.ndarray:
    settings = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
    return adamw.hyper(**{"step": 3, **settings, "clip": 1.0, **changes})


def settings(norm: float = 2.5, **changes: Any) -> MakeInputs:
    """The usual state, with another norm of the gradient or other settings of the step."""

    def make(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {"norm": np.array([norm]), "hyper": hyper(**changes)}

    return make


def loss_scaled(scale: float) -> MakeInputs:
    """Gradients, and their norm, of a loss that was multiplied by `scale`."""

    def make(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {
            "grad": scale * rng.standard_normal(dims["N"]),
            "norm": np.array([scale * 2.5]),
            "hyper": hyper(inv_scale=1 / scale),
        }

    return make


def gradients(size: float) -> MakeInputs:
    """Gradients of another size, and moments that belong to them."""

    def make(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {
            "grad": size * rng.standard_normal(dims["N"]),
            "m": size * rng.standard_normal(dims["N"]),
            "v": (size * rng.standard_normal(dims["N"])) ** 2,
            "norm": np.array([2.5 * size]),
            "hyper": hyper(clip=0.0),
        }

    return make


def first_step(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The moments are 0 before the first step, and its learning rate may be."""
    return {"m": np.zeros(dims["N"]), "v": np.zeros(dims["N"]), "hyper": hyper(step=1)}


def inputs(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """A state as after some steps: v is an average of squares, so it is not negative."""
    count = distinct(dims["N"])
    weight = rng.standard_normal(count)
    return {
        "weight": weight,
        "master": weight,
        "v": rng.standard_normal(count) ** 2,
        "norm": np.array([2.5]),
        "hyper": hyper(),
        "rng": rng.integers(0, 2**32, 4, dtype=np.uint32),
    }


def no_gradient_yet(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Weights that no token of the run has touched: 0 / 0 in a kernel that leaves out eps."""
    return {**inputs(dims, rng), **dict.fromkeys(("m", "v", "grad"), np.zeros(dims["N"]))}


step = Op(
    name="adamw.update",
    summary="one step of AdamW updates m, v and the weight",
    args=(
        update("weight", "N", rounded_by="rng"),
        update("m", "N", "float32"),
        update("v", "N", "float32"),
        update("master", "N", "float32", optional=True),
        read("grad", "N", "float32"),
        read("norm", "1", "float32"),
        read("hyper", "9", "float32"),
        read("rng", "4", "uint32", optional=True),
    ),
    scalars=(Scalar("decay", "float32"), Scalar("stream", "uint32"), Scalar("first", "uint32")),
    scalar_values={"decay": 1.0, "stream": 0x80000003, "first": 1000},
    reference=adamw.update,
    flops=lambda d: 15 * d["N"],
    # The weight is written, and read only where there is no master copy.
    bytes=lambda d, real: d["N"] * (7 * 4 if real.itemsize == 4 else real.itemsize + 7 * 4),
    shapes=tuple({"N": N} for N in (1, 31, 33, 1000, 4099, 65536)),
    bench={"GPT-2 124M": {"N": 124_475_904}},
    make_inputs=inputs,
    cases={
        "no gradient yet": Case(no_gradient_yet, hard=True),
        "clipping off": Case(settings(clip=0.0)),
        "a norm below the clip": Case(settings(norm=0.5)),
        "first step": Case(first_step, {"stream": 0, "first": 0}),
        "late step": Case(settings(step=100_000)),
        "no decay": Case(scalars={"decay": 0.0}),
        "learning rate and betas 0": Case(settings(lr=0.0, beta1=0.0, beta2=0.0)),
        "loss scale 1024": Case(loss_scaled(1024.0)),
        "loss scale 1024, clipping off": Case(
            lambda dims, rng: {
                **loss_scaled(1024.0)(dims, rng),
                **settings(norm=2560.0, clip=0.0, inv_scale=1 / 1024)(dims, rng),
            }
        ),
        "small gradients": Case(gradients(1e-12), hard=True),
        "large gradients": Case(gradients(1e6), hard=True),
        **{
            f"the gradient begins at element {start}": Case(starts={"grad": str(start)})
            for start in (1, 2)
        },
    },
)

LADDERS = (Ladder(step),)
