"""All-reduce: every rank gets the sum of all ranks' vectors, each in the memory of its own GPU."""

import numpy as np

from ladder.all_reduce import library_rungs
from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import Dims, Op, read, shapes, write
from ladder.core.contract.rung_file import Rung
from reference import all_reduce


def link_bytes(dims: Dims, real: np.dtype) -> int:
    """What a rank must receive, and send, of vectors of N elements: 2 (R - 1) / R of a vector
    (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
    2009)."""
    return 2 * (dims["R"] - 1) * dims["N"] * real.itemsize // dims["R"]


total = Op(
    name="all_reduce.sum",
    summary="out[r] = sum of inp over all ranks, for every rank r",
    args=(write("out", "R N", terms="R"), read("inp", "R N")),
    ranks="R",
    reference=all_reduce.sum,
    flops=lambda d: d["R"] * (d["R"] - 1) * d["N"],
    bytes=link_bytes,
    shapes=shapes("R N", (2, 1), (2, 33), (3, 1000), (4, 8), (2, 4096), (4, 8192), (3, 12288)),
    bench={
        f"R={R}, {label}": {"R": R, "N": N}
        for R in (2, 4)
        for label, N in (
            ("GPT-2 124M", 124_475_904),
            ("N=2^22", 1 << 22),
            ("N=2^18", 1 << 18),
            ("N=2^14", 1 << 14),
            ("N=2^10", 1 << 10),
        )
    },
)

nccl = Rung(
    "nccl",
    "NCCL",
    header={"rounds": ("partial sums to real",)},
    run=library_rungs.all_reduce,
    prepare=library_rungs.join,
    library=True,
)

LADDERS = (Ladder(total, (nccl,)),)
