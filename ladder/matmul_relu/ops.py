"""Matmul and ReLU in one op, so that a kernel can apply ReLU, or its gradient, in its epilogue.

Forward, that is the product before the ReLU; backward, the gradient comes the other way, and it is
the product behind it (reference/matmul_relu.py).
"""

import numpy as np

from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import Case, Dims, Op, read
from ladder.matmul import ops as matmul
from ladder.matmul_gelu.ops import SHAPES
from reference import matmul_relu

forward = Op(
    name="matmul_relu.forward",
    summary="out = max(inp @ weight.T + bias, 0)",
    args=(*matmul.forward.args[:3], read("bias", "OC")),
    reference=matmul_relu.forward,
    flops=lambda d: matmul.flops(d) + d["N"] * d["OC"],
    shapes=SHAPES,
    bench={
        "fc": {"N": 16384, "C": 384, "OC": 1536},
        "fc N=65536": {"N": 65536, "C": 768, "OC": 3072},
    },
    cases={
        "not a number": Case(matmul.some_rows_not_a_number, finite=False),
        "second layer": Case(starts={"out": "N * OC", "weight": "OC * C", "bias": "OC"}),
    },
)


def zeros_or_tiny(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """What a comparison may get wrong: signed zeros, and the smallest values beside the largest."""
    sizes = np.array([0.0, 1e-40, 1e-7, 1.0, 6e4])
    return {"out": rng.choice([*sizes, *-sizes], (dims["N"], dims["C"]))}


backward_input = Op(
    name="matmul_relu.backward_input",
    summary="dinp = dout @ weight where out > 0, else 0",
    args=(*matmul.backward_input.args, read("out", "N C")),
    reference=matmul_relu.backward_input,
    flops=lambda d: matmul.flops(d) + d["N"] * d["C"],
    shapes=SHAPES,
    bench={
        "fcproj": {"N": 16384, "C": 1536, "OC": 384},
        "fcproj N=65536": {"N": 65536, "C": 3072, "OC": 768},
    },
    cases={
        "tiny, huge and signed zeros": Case(zeros_or_tiny),
        "second layer": Case(starts={"weight": "OC * C", "out": "N * C"}),
    },
)

LADDERS = (Ladder(forward), Ladder(backward_input))
