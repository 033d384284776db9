"""Matmul and GELU in one op, so that a kernel can apply gelu in its epilogue."""

import math
from collections.abc import Mapping

import numpy as np

from ladder.contract.dims import Dims
from ladder.contract.ladder import Ladder
from ladder.contract.op import Case, MakeInputs, Op, read, write
from ladder.gelu.ops import half
from ladder.matmul_gelu.library_rungs import library_rungs
from reference import matmul_gelu

SHAPES = tuple(
    {"N": N, "C": C, "OC": OC}
    for N, C, OC in [
        (1, 1, 1),
        (3, 31, 33),
        (17, 64, 48),
        (65, 129, 67),
        (128, 96, 136),
    ]
)
BENCH = {
    "fc": {"N": 65536, "C": 768, "OC": 3072},
    "fc N=4096": {"N": 4096, "C": 768, "OC": 3072},
}


def scaled(size: float) -> MakeInputs:
    """Inputs that make `pre` about as large as `size`: gelu bends between -3 and 3."""

    def make(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
        weight = rng.standard_normal((dims["OC"], dims["C"]))
        return {"weight": size / math.sqrt(dims["C"]) * weight}

    return make


def cancels(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"out": half(arrays["pre"])}


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
    dims=("N", "C", "OC"),
    reference=matmul_gelu.forward,
    rereads=True,
    flops=lambda d: 2 * d["N"] * d["C"] * d["OC"] + 8 * d["N"] * d["OC"],
    shapes=SHAPES,
    bench=BENCH,
    make_inputs=scaled(1),
    cancels=cancels,
    cases={
        "large pre": Case(scaled(100), hard=True),
        "small pre": Case(scaled(1e-4)),
        "second layer": Case(starts={"out": "N * OC", "weight": "OC * C", "bias": "OC"}),
    },
)

LADDERS = (Ladder(forward, library_rungs()),)
