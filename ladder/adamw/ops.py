"""AdamW: the update of the weights, with clipping by the global norm and decoupled decay.

`hyper` holds what changes from step to step, in the order of `reference.adamw.HYPER`. `master` is
the float32 copy of weights that are stored in 16 bits; without it `weight` itself is updated.

Weights of 16 bits are rounded to nearest. With `rng` they are rounded at random, up or down with a
probability in proportion to the distance. `rng` is the buffer that dropout reads: (seed low, seed
high, step, micro-step). Each tensor and each dropout of one step has its own `stream`. float32
weights are not rounded.
"""

import numpy as np

from ladder.contract.dims import Dims
from ladder.contract.ladder import Ladder
from ladder.contract.op import Op, Scalar, distinct, read, update
from reference import adamw


def inputs(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """A state as after some steps: v is an average of squares, so it is not negative."""
    count = distinct(dims["N"])
    weight = rng.standard_normal(count)
    return {
        "weight": weight,
        "master": weight,
        "v": rng.standard_normal(count) ** 2,
        "norm": np.array([2.5]),
        "hyper": adamw.hyper(
            step=3, lr=1e-3, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1, clip=1.0
        ),
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
    dims=("N",),
    scalars=(Scalar("decay", "float32"), Scalar("stream", "uint32")),
    scalar_values={"decay": 1.0, "stream": 0x80000003},
    reference=adamw.update,
    flops=lambda d: 15 * d["N"],
    # The weight is written, and read only where there is no master copy.
    bytes=lambda d, real: d["N"] * (7 * 4 if real.itemsize == 4 else real.itemsize + 7 * 4),
    shapes=tuple({"N": N} for N in (1, 31, 33, 1000, 4099, 65536)),
    bench={"GPT-2 124M": {"N": 124_475_904}},
    make_inputs=inputs,
    hard_inputs={"no gradient yet": no_gradient_yet},
    unmeasured=("rng",),
)

LADDERS = (Ladder(step),)
