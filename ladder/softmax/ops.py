"""Softmax over rows of V elements."""

import numpy as np

from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import Case, Dims, Op, distinct, read, shapes, write
from reference import softmax

SHAPES = shapes("N V", (1, 1), (3, 31), (5, 33), (2, 1024), (7, 1009), (2, 50257))
BENCH = {"N=65536 V=1024": {"N": 65536, "V": 1024}, "N=4096 V=50304": {"N": 4096, "V": 50304}}


def backward_inputs(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    rows = distinct(dims["N"], dims["V"])
    probs = np.exp(rng.standard_normal((rows, dims["V"])))
    return {"probs": probs / probs.sum(axis=1, keepdims=True)}


def huge(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Logits whose exponentials overflow unless the row's maximum is subtracted first."""
    return {"logits": 1000 * rng.standard_normal((dims["N"], dims["V"]))}


def far_away(dims: Dims, rng: np.random.Generator) -> np.ndarray:
    """Rows far above 0, far below, of equal numbers, and with one that is far above the others."""
    logits = rng.standard_normal((dims["N"], dims["V"]))
    logits[0::4] += 5000
    logits[1::4] -= 5000
    logits[2::4] = -3
    logits[3::4, -1] += 200
    return logits


def masked(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Logits of -infinity, whose probability is 0: the first half of each row, and every third."""
    logits = rng.standard_normal((dims["N"], dims["V"]))
    logits[:, : dims["V"] // 2] = -np.inf
    logits[:, dims["V"] // 2 + 1 :: 3] = -np.inf
    return {"logits": logits}


def certain(dims: Dims, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Rows with one probability of 1, and 0 for the others."""
    probs = np.zeros((dims["N"], dims["V"]))
    probs[np.arange(dims["N"]), rng.integers(0, dims["V"], dims["N"])] = 1
    return {"probs": probs}


forward = Op(
    name="softmax.forward",
    summary="probs = exp(logits) / sum(exp(logits)), row by row, without overflow",
    args=(write("probs", "N V", terms="V"), read("logits", "N V")),
    reference=softmax.forward,
    flops=lambda d: 5 * d["N"] * d["V"],
    shapes=SHAPES,
    bench=BENCH,
    cases={
        "huge logits": Case(huge, hard=True),
        "logits far from 0, or equal": Case(
            lambda dims, rng: {"logits": far_away(dims, rng)}, hard=True
        ),
        "masked logits": Case(masked, hard=True),
    },
)

backward = Op(
    name="softmax.backward",
    summary="dlogits = probs * (dprobs - sum(dprobs * probs)), row by row",
    args=(write("dlogits", "N V", terms="V"), read("dprobs", "N V"), read("probs", "N V")),
    reference=softmax.backward,
    flops=lambda d: 4 * d["N"] * d["V"],
    shapes=SHAPES,
    bench=BENCH,
    make_inputs=backward_inputs,
    cases={"a certain token": Case(certain, hard=True)},
)

LADDERS = (Ladder(forward), Ladder(backward))
