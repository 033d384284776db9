"""GELU in its tanh form, as GPT-2 was trained with."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import Case, Dims, Op, distinct, read, write
from reference import gelu

SHAPES = tuple({"N": N} for N in (1, 31, 33, 1000, 4099, 65536))
FAR = 11.0  # where x (1 - |tanh|) is less than the smallest float32 above 0
BENCH = {"N=65536*3072": {"N": 65536 * 3072}, "N=4096*3072": {"N": 4096 * 3072}}


def far_and_near(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Both tails, where tanh is 1 to the last digit and its slope 0, and both sides of 0."""
    sizes = np.array([0.0, 1e-30, 1e-6, 1e-3, 5.0, 10.0, 30.0, 100.0, 1000.0])
    count = distinct(dims["N"])
    return {"inp": rng.choice(sizes, count) * rng.standard_normal(count)}


def half(x: np.ndarray) -> np.ndarray:
    """What cancels in gelu(x), as size: the two halves of x, where tanh is nearly -1. From FAR on,
    what should be left of them is 0."""
    return np.where((x < 0) & (x > -FAR), np.abs(x / 2), 0.0)


def backward_cancels(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """1 - tanh^2 times what stands before it, until the product is 0."""
    x = arrays["inp"]
    slope = gelu.SCALE * (1 + 3 * gelu.CUBIC * x * x)
    return {"dinp": np.where(np.abs(x) < FAR, np.abs(arrays["dout"] * x * slope / 2), 0.0)}


forward = Op(
    name="gelu.forward",
    summary="out = inp / 2 * (1 + tanh(sqrt(2 / pi) * (inp + 0.044715 * inp^3)))",
    args=(write("out", "N"), read("inp", "N")),
    reference=gelu.forward,
    flops=lambda d: 8 * d["N"],
    shapes=SHAPES,
    bench=BENCH,
    cases={"far from 0 and near it": Case(far_and_near, hard=True)},
    cancels=lambda arrays: {"out": half(arrays["inp"])},
)

backward = replace(
    forward,
    name="gelu.backward",
    summary="dinp = dout * gelu'(inp)",
    args=(write("dinp", "N"), read("dout", "N"), read("inp", "N")),
    reference=gelu.backward,
    flops=lambda d: 16 * d["N"],
    cancels=backward_cancels,
)

LADDERS = (Ladder(forward), Ladder(backward))
