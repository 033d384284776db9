"""AdamW: the update of the weights, with clipping by the global norm and decoupled decay.

`hyper` holds what changes from step to step, in the order of `reference.adamw.HYPER`. `master` is
the float32 copy of weights that are stored in 16 bits; without it `weight` itself is updated.
"""

import numpy as np

from ladder.contract import Dims, Ladder, Op, Scalar, read, update
from reference import adamw


def inputs(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """A state as it is after some steps: v is an average of squares, hence not negative."""
    weight = rng.standard_normal(dims["N"])
    return {
        "weight": weight,
        "master": weight,
        "v": rng.standard_normal(dims["N"]) ** 2,
        "norm": np.array([2.5]),
        "hyper": adamw.hyper(
            step=3, lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip=1.0
        ),
    }


step = Op(
    name="adamw.update",
    summary="m, v and the weight move by one step of AdamW",
    args=(
        update("weight", "N"),
        update("m", "N", "float32"),
        update("v", "N", "float32"),
        update("master", "N", "float32", optional=True),
        read("grad", "N", "float32"),
        read("norm", "1", "float32"),
        read("hyper", "9", "float32"),
    ),
    dims=("N",),
    scalars=(Scalar("decay", "float32"),),
    scalar_values={"decay": 1.0},
    reference=adamw.update,
    flops=lambda d: 15 * d["N"],
    # The weight is written, and read only where there is no master copy.
    bytes=lambda d, real: d["N"] * (7 * 4 if real.itemsize == 4 else real.itemsize + 7 * 4),
    shapes=tuple({"N": N} for N in (1, 31, 33, 1000, 4099, 65536)),
    bench={"GPT-2 124M": {"N": 124_475_904}},
    make_inputs=inputs,
)

LADDERS = (Ladder(step),)
