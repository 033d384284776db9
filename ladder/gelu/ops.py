"""GELU in its tanh form, as GPT-2 was trained with."""

from ladder.contract.ladder import Ladder
from ladder.contract.op import Op, read, write
from reference import gelu

SHAPES = tuple({"N": N} for N in (1, 31, 33, 1000, 4099, 65536))
BENCH = {"N=65536*3072": {"N": 65536 * 3072}, "N=4096*3072": {"N": 4096 * 3072}}

forward = Op(
    name="gelu.forward",
    summary="out = inp / 2 * (1 + tanh(sqrt(2 / pi) * (inp + 0.044715 * inp^3)))",
    args=(write("out", "N"), read("inp", "N")),
    dims=("N",),
    reference=gelu.forward,
    flops=lambda d: 8 * d["N"],
    shapes=SHAPES,
    bench=BENCH,
)

backward = Op(
    name="gelu.backward",
    summary="dinp = dout * gelu'(inp)",
    args=(write("dinp", "N"), read("dout", "N"), read("inp", "N")),
    dims=("N",),
    reference=gelu.backward,
    flops=lambda d: 16 * d["N"],
    shapes=SHAPES,
    bench=BENCH,
)

LADDERS = (Ladder(forward), Ladder(backward))
