"""The limits of an exercise: what a kernel may ask of memory at most, counted by the emulator.

A right result does not show that a kernel has the idea that an exercise is about. A kernel that
loads everything again and again computes the same numbers. The counts tell the two apart.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ladder.common.errors import LadderError
from ladder.contract.dims import Dims, format_dims
from ladder.contract.ladder import Ladder
from ladder.contract.rung_file import Rung
from ladder.emulator.report import LineCount
from ladder.show import trace

WARP = 32  # lanes, whose multiply-adds are one instruction

MEASURES: dict[str, Callable[[LineCount], int]] = {  # what a line of the source adds to each
    "sectors": lambda line: line.sectors,
    "wavefronts": lambda line: line.wavefronts,
    "extra wavefronts": lambda line: line.wavefronts - line.ideal_wavefronts,
    "loads per multiply-add": lambda line: line.requests if line.kind == "read" else 0,
}


def judge(
    ladder: Ladder, rung: Rung, dims: Dims, at_most: Mapping[str, float]
) -> tuple[bool, list[str]]:
    """Whether a kernel keeps all limits, and a sentence on each of them.

    at_most  the most of each measure: of all arrays, or of one ("sectors of inp"). Sectors are
             those of global memory, wavefronts those of shared memory; extra wavefronts are due to
             bank conflicts. Loads and multiply-adds are the instructions of a warp.

    Raises LadderError for an unknown measure, and where the kernel cannot run at this shape.
    """
    lines = trace.trace(ladder, rung, "float32", dims).lines
    kept, sentences = True, []
    for name, limit in at_most.items():
        what, _, array = name.partition(" of ")
        if what not in MEASURES:
            raise LadderError(f"nothing counts {what!r}; there are {', '.join(MEASURES)}")
        per = ladder.op.flops(dims) / 2 / WARP if "per multiply-add" in what else 1
        costs = {line: MEASURES[what](line) / per for line in lines if array in ("", line.buffer)}
        total = sum(costs.values())
        text = f"{name}: {total:,.4g}" if per > 1 else f"{name}: {total:,.0f}"
        text += f" at {format_dims(dims)}; the limit is {limit:,g}"
        if total > limit:
            kept = False
            worst = max(costs, key=lambda line: costs[line])
            text = f"The result is right, but the kernel takes too many {text}. {_where(worst)}"
        sentences.append(text)
    return kept, sentences


def _where(line: LineCount) -> str:
    """Which line costs most, and what it does."""
    space = "shared memory" if line.space == "shared" else "global memory"
    verb = {"read": "reads", "write": "writes"}.get(line.kind, "adds to")
    place = f"{Path(line.file).name}:{line.line}"
    return f"Most of them are in {place}, which {verb} {line.buffer} in {space}."
