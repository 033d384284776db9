"""Residual: the sum at the end of a branch, and the sum of gradients at its start."""

from dataclasses import replace

from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import Op, read, update, write
from reference import residual

forward = Op(
    name="residual.forward",
    summary="out = inp1 + inp2",
    args=(write("out", "N"), read("inp1", "N"), read("inp2", "N")),
    reference=residual.forward,
    flops=lambda d: d["N"],
    shapes=tuple({"N": N} for N in (1, 31, 33, 1000, 4099, 65536)),
    bench={"N=65536*768": {"N": 65536 * 768}, "N=4096*768": {"N": 4096 * 768}},
)

backward = replace(
    forward,
    name="residual.backward",
    summary="dinp += dout: the gradient of a branch joins the gradient of the stream",
    args=(update("dinp", "N"), read("dout", "N")),
    reference=residual.backward,
)

LADDERS = (Ladder(forward), Ladder(backward))
