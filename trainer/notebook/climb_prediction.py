"""What a climb should save, from times of its rungs alone, beside what it saved in the step.

`python -m ladder bench` times a rung alone; `python -m trainer climb` times the whole step before
and after an op is raised. Both are in doc/results. The first should predict the second: a step is a
list of calls, and its time is their sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ladder.core.common.errors import LadderError
from ladder.core.common.files import read_json
from ladder.core.contract.dims import Dims
from ladder.core.contract.dtypes import DTYPES
from ladder.core.contract.ladder import find
from ladder.core.contract.op import Op
from ladder.core.measure import results
from ladder.core.measure.roofline import compute_bound
from trainer.commands import step_timing
from trainer.engine.rung_map import key_for
from trainer.model.calls import Call
from trainer.model.program import build
from trainer.model.registry import SIZES

BF16 = DTYPES["bfloat16"]


@dataclass(frozen=True)
class Bench:
    """What a rung alone takes at one shape, and the rung that the climb raised its op to."""

    dims: Dims
    low_us: float
    high_us: float


@dataclass(frozen=True)
class Saving:
    """The milliseconds that raising an op saves in a step.

    bench      the times of the two rungs alone that `predicted` is made of
    exact      whether these were measured at the shape that the step has
    predicted  their difference, times the work of the step's calls by that of the bench
    measured   the difference between the steps before and after
    """

    op: str
    calls: int
    bench: Bench
    exact: bool
    predicted: float
    measured: float


def measured_climb() -> dict[str, Any]:
    """The climb of GPT-2 124M in doc/results; measure/climb.py says what is in it.

    Raises LadderError where none has been measured.
    """
    paths = sorted(step_timing.FOLDER.glob("*-climb-gpt2-*.json"))
    if not paths:
        raise LadderError("no climb has been measured yet: `make climb`, on a machine with a GPU")
    climb: dict[str, Any] = read_json(paths[0])
    return climb


def savings(climb: Mapping[str, Any], exact: bool = True) -> list[Saving]:
    """For each op that the climb raises, in its order; without those whose two rungs have not been
    timed alone.

    exact  prefer a bench at a shape of the step; else the largest shape is scaled down
    """
    job = climb["job"]
    shape = SIZES[job["model"]].config
    program = build(shape, job["B"], job["T"])
    content = results.load_all()[results.slug(climb["machine"]["name"])]
    found = []
    for before, stage in zip(climb["stages"], climb["stages"][1:], strict=False):
        if stage.get("op") is None:
            continue
        calls = [call for call in program.training_step if call.op == stage["op"]]
        benches = [*_benches(content["measurements"], stage)]
        if benches:
            saved = before["ms"] - stage["ms"]
            found.append(_saving(calls, benches, exact, saved))
    return found


def _benches(
    measurements: Sequence[Mapping[str, Any]], stage: Mapping[str, Any]
) -> Iterator[Bench]:
    """The shapes at which both rungs of a stage were timed, in 16 bits where there is such."""
    of_op = [m for m in measurements if m["op"] == stage["op"]]
    for m in [m for m in of_op if m["dtype"] == "bfloat16"] or of_op:
        times = {row.get("rung"): row.get("median_us") for row in m["rows"]}
        to = stage["to"]  # one rung, or some by shape
        if not isinstance(to, str):
            to = to[key_for(to, stage["op"], m["dims"]) or stage["op"]]
        low, high = times.get(stage["from"]), times.get(to)
        if low and high:
            yield Bench(m["dims"], low, high)


def _saving(calls: Sequence[Call], benches: Sequence[Bench], exact: bool, saved: float) -> Saving:
    op = find(calls[0].op).op
    same = [b for b in benches if any(b.dims == dict(call.dims) for call in calls)]
    largest = max(benches, key=lambda bench: _work(op, bench.dims))
    chosen = same[0] if same and exact else largest
    share = sum(_work(op, call.dims) for call in calls) / _work(op, chosen.dims)
    predicted = share * (chosen.low_us - chosen.high_us) / 1e3
    return Saving(op.name, len(calls), chosen, chosen in same, predicted, saved)


def _work(op: Op, dims: Dims) -> float:
    """What the time of a call should be proportional to: its FLOPs or its bytes."""
    return op.flops(dims) if compute_bound(op, dims, BF16) else op.least_bytes(dims, BF16)
