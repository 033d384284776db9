"""Matmul and GELU in one op, so that a kernel can apply gelu, or its slope, in its epilogue.

Forward, that is the product before the gelu; backward, the gradient comes the other way, and it is
the product behind it (reference/matmul_gelu.py).
"""

import math
from collections.abc import Mapping

import numpy as np

from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import Case, Dims, MakeInputs, Op, read, shapes, write
from ladder.gelu import ops as gelu
from ladder.matmul import ops as matmul
from ladder.matmul_gelu.library_rungs import library_rungs
from reference import matmul_gelu

SHAPES = shapes("N C OC", (1, 1, 1), (3, 31, 33), (17, 64, 48), (65, 129, 67), (128, 96, 136))


def scaled(size: float) -> MakeInputs:
    """Inputs that make `pre` about as large as `size`: gelu bends between -3 and 3."""

    def make(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
        weight = rng.standard_normal((dims["OC"], dims["C"]))
        return {"weight": size / math.sqrt(dims["C"]) * weight}

    return make


forward = Op(
    name="matmul_gelu.forward",
    summary="pre = inp @ weight.T + bias, out = gelu(pre), of pre as it is stored",
    args=(
        write("out", "N OC", terms="C"),
        write("pre", "N OC", terms="C"),
        read("inp", "N C"),
        read("weight", "OC C"),
        read("bias", "OC"),
    ),
    reference=matmul_gelu.forward,
    flops=lambda d: matmul.flops(d) + 8 * d["N"] * d["OC"],
    shapes=SHAPES,
    bench={
        "fc": {"N": 65536, "C": 768, "OC": 3072},
        "fc N=4096": {"N": 4096, "C": 768, "OC": 3072},
    },
    make_inputs=scaled(1),
    cancels=lambda arrays: {"out": gelu.half(arrays["pre"])},
    cases={
        "large pre": Case(scaled(100), hard=True),
        "small pre": Case(scaled(1e-4)),
        "second layer": Case(starts={"out": "N * OC", "weight": "OC * C", "bias": "OC"}),
    },
)


def far_and_near(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """A `pre` in both tails and near 0, as gelu.backward has it."""
    flat = gelu.far_and_near({"N": dims["N"] * dims["C"]}, rng)["inp"]
    return {"pre": np.resize(flat, (dims["N"], dims["C"]))}


def backward_cancels(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What cancels in gelu.backward of the product, which is no argument."""
    product = arrays["dout"] @ arrays["weight"]
    return gelu.backward_cancels({"dout": product, "inp": arrays["pre"]})


backward_input = Op(
    name="matmul_gelu.backward_input",
    summary="dinp = (dout @ weight) * gelu'(pre)",
    args=(*matmul.backward_input.args, read("pre", "N C")),
    reference=matmul_gelu.backward_input,
    flops=lambda d: matmul.flops(d) + 16 * d["N"] * d["C"],
    shapes=SHAPES,
    bench={
        "fcproj": {"N": 65536, "C": 3072, "OC": 768},
        "fcproj N=4096": {"N": 4096, "C": 3072, "OC": 768},
    },
    cancels=backward_cancels,
    cases={
        "far from 0 and near it": Case(far_and_near, hard=True),
        "second layer": Case(starts={"weight": "OC * C", "pre": "N * C"}),
    },
)

LADDERS = (Ladder(forward, library_rungs()), Ladder(backward_input))
