"""Matmul and residual in one op: the product at the end of a branch adds to the residual stream."""

from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import Case, Op, read, write
from ladder.matmul import ops as matmul
from ladder.matmul_gelu.ops import SHAPES
from reference import matmul_residual

forward = Op(
    name="matmul_residual.forward",
    summary="out = stream + inp @ weight.T + bias",
    args=(
        write("out", "N OC", terms="C"),
        read("stream", "N OC"),
        read("inp", "N C"),
        read("weight", "OC C"),
        read("bias", "OC"),
    ),
    reference=matmul_residual.forward,
    flops=lambda d: matmul.flops(d) + d["N"] * d["OC"],
    shapes=SHAPES,
    bench={name: matmul.BENCH[name] for name in ("attproj", "fcproj")},
    cases={"second layer": Case(starts={"stream": "N * OC", "weight": "OC * C", "bias": "OC"})},
)

LADDERS = (Ladder(forward),)
