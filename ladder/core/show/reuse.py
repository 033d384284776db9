"""How often a rung uses what it loads, counted by the emulator, for several rungs of a ladder.

Every level of memory has its own arithmetic intensity: the FLOPs that each byte serves which comes
from it. A kernel is as fast as the slowest level allows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ladder.core.contract.dims import Dims
from ladder.core.contract.ladder import Ladder
from ladder.core.contract.rung_file import Rung
from ladder.core.emulator.report import SECTOR
from ladder.core.show import trace

WAVEFRONT = 128  # bytes: 32 banks of 4


@dataclass(frozen=True)
class Reuse:
    """What the loads of one rung serve.

    per_load       multiply-adds of a warp for each load instruction of a warp
    global_flops   FLOPs for each byte loaded from global memory or a cache, in whole sectors
    shared_flops   FLOPs for each byte that shared memory could have moved in the wavefronts that
                   all loads and stores took; None without shared memory
    """

    per_load: float
    global_flops: float
    shared_flops: float | None


def count(ladder: Ladder, rung: Rung, dtype: str, dims: Dims, warp: Literal[32, 64] = 32) -> Reuse:
    """Run the rung once in the emulator. Raises LadderError where it cannot run."""
    lines = trace.own_lines(trace.trace(ladder, rung, dtype, dims, warp), rung)
    reads = [line for line in lines if line.kind == "read"]
    flops = ladder.op.flops(dims)
    sectors = sum(line.sectors for line in reads if line.space == "global")
    wavefronts = sum(line.wavefronts for line in lines if line.space == "shared")
    return Reuse(
        flops / 2 / warp / sum(line.requests for line in reads),
        flops / (SECTOR * sectors),
        flops / (WAVEFRONT * wavefronts) if wavefronts else None,
    )


def table(
    ladder: Ladder, rungs: Sequence[Rung], dtype: str, dims: Dims, warp: Literal[32, 64] = 32
) -> str:
    """One row for each rung, as Markdown."""
    rows = [
        "| rung | multiply-adds per load instruction "
        "| FLOPs per byte from global memory and caches | FLOPs per byte of shared memory |",
        "|---|--:|--:|--:|",
    ]
    for rung in rungs:
        found = count(ladder, rung, dtype, dims, warp)
        shared = "" if found.shared_flops is None else f"{found.shared_flops:.2f}"
        rows.append(
            f"| {rung.id}: {rung.idea} | {found.per_load:.2f} | {found.global_flops:.2f} "
            f"| {shared} |"
        )
    return "\n".join(rows)
