"""Matmul and crossentropy in one op (fused linear crossentropy): the product of the logits leaves
what both products of the backward pass need, and the losses (reference/matmul_crossentropy.py).

`dweight` follows by `matmul.backward_weight` of `exps` and `scaled`. float16 does not hold the
exponentials: its numbers end at e^11, those of bfloat16 and float32 at e^88.
"""

from collections.abc import Mapping

import numpy as np

from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import Case, Dims, Op, read, shapes, write
from ladder.crossentropy import ops as crossentropy
from ladder.matmul.ops import flops, some_rows_not_a_number
from reference import matmul_crossentropy

SHAPES = shapes(
    "N C V OC",
    (1, 1, 1, 1),
    (3, 31, 29, 33),
    (17, 64, 48, 48),
    (65, 72, 100, 136),
    (128, 96, 300, 320),
)
BENCH = {
    "B*T=65536": {"N": 65536, "C": 768, "V": 50257, "OC": 50304},
    "B*T=4096": {"N": 4096, "C": 768, "V": 50257, "OC": 50304},
    "char N=16384": {"N": 16384, "C": 384, "V": 65, "OC": 128},
}


def inputs(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Weights with which the logits are about 1: exponentials of a row are of like size."""
    weight = rng.standard_normal((dims["OC"], dims["C"])) / np.sqrt(dims["C"])
    return {**crossentropy.fused_inputs(dims, rng), "weight": weight}


def huge(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Logits that are hundreds apart: exponentials are 0, or cut off."""
    return {"weight": rng.standard_normal((dims["OC"], dims["C"])) * 300 / np.sqrt(dims["C"])}


def two_levels(level: float) -> Case:
    """Logits that are 0 or `level`, targets among both: losses below 1e-37, and above 62."""

    def make(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
        inp, weight = np.zeros((dims["N"], dims["C"])), np.zeros((dims["OC"], dims["C"]))
        inp[:, 0], weight[::3, 0] = 1, level
        return {"inp": inp, "weight": weight}

    return Case(make, hard=True)


def cancels(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The target's logit is subtracted from one like it, which is computed in another order; its
    exponential of 1 is a part of the total, which is subtracted from 1."""
    targets = arrays["targets"].astype(int)
    size = 1 + (np.abs(arrays["inp"]) * np.abs(arrays["weight"][targets])).sum(1)
    exps = np.zeros(arrays["exps"].shape)
    exps[np.arange(size.size), targets] = size
    return {
        "exps": exps,
        "losses": size,
        "factors": np.abs(arrays["factors"]) * size,
        "scaled": np.abs(arrays["scaled"]) * size[:, None],
    }


forward = Op(
    name="matmul_crossentropy.forward",
    summary="exps = exp(logits - logits[target]) of logits = inp @ weight.T, with 1 - total at the "
    "target; losses = log(total); factors = dloss / total, by which inp is scaled",
    args=(
        write("exps", "N OC", terms="C + OC"),
        write("losses", "N", "float32", terms="C + OC"),
        write("factors", "N", "float32", terms="C + OC"),
        write("scaled", "N C", terms="C + OC"),
        read("inp", "N C"),
        read("weight", "OC C"),
        read("targets", "N", "int32"),
        read("dloss", "1", "float32"),
    ),
    fits=("V <= OC",),
    reference=matmul_crossentropy.forward,
    flops=flops,
    shapes=SHAPES,
    also=({"N": 300, "C": 72, "V": 397, "OC": 400},),  # no header tells that V matters
    bench=BENCH,
    make_inputs=inputs,
    cancels=cancels,
    cases={
        **crossentropy.EDGES,
        **crossentropy.SCALES,
        "huge logits": Case(huge, hard=True),
        "equal logits": two_levels(0),
        "targets 87 above and below": two_levels(87),
        "not a number": Case(some_rows_not_a_number, finite=False),
        "second layer": Case(starts={"exps": "N * OC", "inp": "N * C"}),
    },
)

backward_input = Op(
    name="matmul_crossentropy.backward_input",
    summary="dinp = factors * (exps @ weight)",
    args=(
        write("dinp", "N C", terms="OC"),
        read("exps", "N OC"),
        read("factors", "N", "float32"),
        read("weight", "OC C"),
    ),
    reference=matmul_crossentropy.backward_input,
    flops=flops,
    shapes=tuple({name: s[name] for name in ("N", "C", "OC")} for s in SHAPES),
    bench={name: {"N": s["N"], "C": s["C"], "OC": s["OC"]} for name, s in BENCH.items()},
    cases={"second layer": Case(starts={"dinp": "N * C", "exps": "N * OC"})},
)

LADDERS = (Ladder(forward), Ladder(backward_input))
