"""Matmul: the linear layer, out = inp @ weight.T + bias, and its gradients: three ops, of which two
are also one."""

from dataclasses import replace

import numpy as np

from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import Case, Dims, OnGpu, Op, read, shapes, update, write
from ladder.matmul import library_rungs as library
from ladder.matmul.library_rungs import library_rungs, one_kernel_rungs
from reference import matmul

SHAPES = shapes(
    "N C OC",
    (1, 1, 1),
    (3, 31, 33),
    (17, 64, 48),
    (64, 64, 64),
    (65, 129, 67),
    (128, 96, 136),
    (300, 40, 24),
)
BENCH = {
    "qkv": {"N": 65536, "C": 768, "OC": 2304},
    "attproj": {"N": 65536, "C": 768, "OC": 768},
    "fc": {"N": 65536, "C": 768, "OC": 3072},
    "fcproj": {"N": 65536, "C": 3072, "OC": 768},
    "lm head": {"N": 65536, "C": 768, "OC": 50304},
    "qkv N=4096": {"N": 4096, "C": 768, "OC": 2304},
    "N=16384 C=384": {"N": 16384, "C": 384, "OC": 384},  # a character model's
}
WITH_BIAS = {name: sizes for name, sizes in BENCH.items() if name != "lm head"}


def flops(d: Dims) -> int:
    return 2 * d["N"] * d["C"] * d["OC"]


def some_rows_not_a_number(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    inp = rng.standard_normal((dims["N"], dims["C"]))
    inp[::3, -1] = np.nan
    return {"inp": inp}


forward = Op(
    name="matmul.forward",
    summary="out = inp @ weight.T + bias",
    args=(
        write("out", "N OC", terms="C"),
        read("inp", "N C"),
        read("weight", "OC C"),
        read("bias", "OC", optional=True),
    ),
    reference=matmul.forward,
    flops=flops,
    shapes=SHAPES,
    cases={"second layer": Case(starts={"out": "N * OC", "weight": "OC * C", "bias": "OC"})},
    bench=BENCH,
)

backward_input = replace(
    forward,
    name="matmul.backward_input",
    summary="dinp = dout @ weight",
    args=(write("dinp", "N C", terms="OC"), read("dout", "N OC"), read("weight", "OC C")),
    reference=matmul.backward_input,
    cases={"second layer": Case(starts={"dinp": "N * C", "weight": "OC * C"})},
)

backward_weight = replace(
    forward,
    name="matmul.backward_weight",
    summary="dweight += dout.T @ inp",
    args=(
        update("dweight", "OC C", "float32", terms="N"),
        read("dout", "N OC"),
        read("inp", "N C"),
    ),
    reference=matmul.backward_weight,
    also=(
        # Split over the emulator's 4 SMs: 9 steps each, more than two rounds of a ring of 4 stages.
        {"N": 2113, "C": 8, "OC": 8},
        # 3 tiles of 23 steps: stream-K cuts the second one's last ones. With fewer SMs, never.
        OnGpu(5, {"N": 1409, "C": 8, "OC": 264}, "matmul.tiles.stream_k"),
    ),
    cases={"second layer": Case(starts={"dweight": "OC * C", "inp": "N * C"})},
)

backward_bias = Op(
    name="matmul.backward_bias",
    summary="dbias += dout summed over the rows",
    args=(update("dbias", "OC", "float32", terms="N"), read("dout", "N OC")),
    reference=matmul.backward_bias,
    flops=lambda d: d["N"] * d["OC"],
    shapes=tuple({"N": s["N"], "OC": s["OC"]} for s in SHAPES),
    also=({"N": 1100, "OC": 24},),  # the blocks of a cluster share the rows: two rounds of 512
    cases={"second layer": Case(starts={"dbias": "OC", "dout": "N * OC"})},
    bench={
        name.replace(" C=", " OC="): {"N": s["N"], "OC": s["OC"]} for name, s in WITH_BIAS.items()
    },
)

backward_weight_bias = Op(
    name="matmul.backward_weight_bias",
    summary="dweight += dout.T @ inp, dbias += dout summed over the rows",
    args=(backward_weight.args[0], *backward_bias.args, read("inp", "N C")),
    reference=matmul.backward_weight_bias,
    flops=lambda d: flops(d) + d["N"] * d["OC"],
    shapes=SHAPES,
    # Split over the emulator's 4 SMs: more than two rounds of a ring of 4 stages; 5 steps in parts
    # of 2, so that the fourth SM has none.
    also=({"N": 2113, "C": 8, "OC": 8}, {"N": 257, "C": 8, "OC": 8}),
    cases={"second layer": Case(starts={"dweight": "OC * C", "dbias": "OC", "inp": "N * C"})},
    bench=WITH_BIAS,
)

LADDERS = (
    Ladder(forward, (*library_rungs(library.forward), *one_kernel_rungs())),
    Ladder(backward_input, library_rungs(library.backward_input)),
    Ladder(backward_weight, library_rungs(library.backward_weight)),
    Ladder(backward_bias),
    Ladder(backward_weight_bias),
)
