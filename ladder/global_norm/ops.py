"""Global norm: the length of all gradients as one vector, which clipping compares."""

from ladder.contract.ladder import Ladder
from ladder.contract.op import Op, read, write
from reference import global_norm

forward = Op(
    name="global_norm.forward",
    summary="norm = sqrt(sum(grad^2))",
    args=(write("norm", "1", "float32", terms="N"), read("grad", "N", "float32")),
    dims=("N",),
    reference=global_norm.forward,
    flops=lambda d: 2 * d["N"],
    shapes=tuple({"N": N} for N in (1, 31, 33, 1000, 4099, 300_007)),
    bench={"GPT-2 124M": {"N": 124_475_904}},
)

LADDERS = (Ladder(forward),)
