"""The profile of a training step without a clock: the sectors of memory that each op asks for.

The emulator counts a call of each op at each of the step's shapes, on random inputs. What a step
asks for is the sum over its calls: caches do not hide any of it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ladder.core.contract.dtypes import DTYPES
from ladder.core.contract.ladder import find
from ladder.core.contract.rung_file import Rung
from ladder.core.emulator.report import SECTOR
from ladder.core.show import trace
from ladder.core.show.notebook import rung_of
from trainer.engine import rung_map
from trainer.model.calls import Call

FLOAT32 = DTYPES["float32"]


@dataclass(frozen=True)
class OpCount:
    """Sectors of 32 bytes that all calls of an op in a step ask for, and the least possible."""

    op: str
    calls: int
    sectors: int
    least: int


def count(step: Sequence[Call], rungs: Mapping[str, Rung]) -> list[OpCount]:
    """A row for each op of a step's calls, in float32, that with the most sectors first.

    Raises LadderError where a rung is no kernel, or cannot run at a shape of the step.
    """
    rows = []
    for name in dict.fromkeys(call.op for call in step):
        calls = [call for call in step if call.op == name]
        op, sectors = find(name).op, 0
        for call in calls:
            rung = rung_map.rung_of(rungs, call)
            kernel = rung.id if rung.number else rung.source
            sectors += _sectors(name, kernel, rung_map.shape_of(call))
        least = sum(op.least_bytes(call.dims, FLOAT32) for call in calls) // SECTOR
        rows.append(OpCount(name, len(calls), sectors, least))
    return sorted(rows, key=lambda row: -row.sectors)


@functools.lru_cache(maxsize=512)
def _sectors(op: str, kernel: str, dims: tuple[tuple[str, int], ...]) -> int:
    """Of one call. `kernel`: the id of a rung, or the source of another kernel."""
    report = trace.trace(find(op), rung_of(op, kernel), "float32", dict(dims), keep=1)
    return sum(line.sectors for line in report.lines)
