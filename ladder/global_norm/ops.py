"""Global norm: the length of all gradients as one vector, which clipping compares."""

import numpy as np

from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import Case, Dims, MakeInputs, Op, read, write
from reference import global_norm


def sized(size: float) -> MakeInputs:
    def make(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
        return {"grad": size * rng.standard_normal(dims["N"])}

    return make


def one_is(value: float) -> MakeInputs:
    """One gradient is no finite number. The norm tells the trainer to skip the update."""

    def make(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
        grad = rng.standard_normal(dims["N"])
        grad[-1] = value
        return {"grad": grad}

    return make


forward = Op(
    name="global_norm.forward",
    summary="norm = sqrt(sum(grad^2))",
    args=(write("norm", "1", "float32", terms="N"), read("grad", "N", "float32")),
    reference=global_norm.forward,
    flops=lambda d: 2 * d["N"],
    shapes=tuple({"N": N} for N in (1, 31, 33, 1000, 4099, 300_007)),
    cases={
        "no gradient": Case(sized(0.0)),
        "small gradients": Case(sized(1e-15)),
        "large gradients": Case(sized(1e15)),
        "an infinite gradient": Case(one_is(np.inf), finite=False),
        "a gradient that is not a number": Case(one_is(np.nan), finite=False),
    },
    also=({"N": 300_007},),  # with many SMs, more partial sums than a block has threads
    bench={"GPT-2 124M": {"N": 124_475_904}},
)

LADDERS = (Ladder(forward),)
