"""Two first ladders, for notebooks/00_start.ipynb: adding two vectors, and summing one."""

from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import Op, read, update, write
from reference import start

SHAPES = tuple({"N": N} for N in (1, 31, 33, 1000, 4099, 65536))
BENCH = {"N=2^26": {"N": 1 << 26}}

add = Op(
    name="start.add",
    summary="c = a + b",
    args=(write("c", "N", "float32"), read("a", "N", "float32"), read("b", "N", "float32")),
    reference=start.add,
    flops=lambda d: d["N"],
    shapes=SHAPES,
    bench=BENCH,
)

sum_ = Op(
    name="start.sum",
    summary="total += the sum of inp",
    args=(update("total", "1", "float32", terms="N"), read("inp", "N", "float32")),
    reference=start.sum,
    flops=lambda d: d["N"],
    shapes=SHAPES,
    bench=BENCH,
)

LADDERS = (Ladder(add), Ladder(sum_))
