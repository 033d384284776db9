"""How many sectors of each array the rungs of a ladder move, counted by the emulator.

A rung that stores an intermediate result pays for it in sectors; so does one that loads the same
elements over and over. Beside each other, the columns tell which of the two it is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from ladder.core.contract.dims import Dims, format_dims
from ladder.core.contract.dtypes import resolve_dtype
from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import Op
from ladder.core.contract.rung_file import Rung
from ladder.core.emulator.report import SECTOR, Report
from ladder.core.show import trace


def count(ladder: Ladder, rung: Rung, dtype: str, dims: Dims) -> tuple[Counter[str], int]:
    """Sectors of global memory by array, and wavefronts of shared memory; reads and writes.

    Copies by TMA are not counted. Raises LadderError where the rung cannot run.
    """
    sectors: Counter[str] = Counter()
    wavefronts = 0
    for line in trace.trace(ladder, rung, dtype, dims).lines:
        if line.space == "global":
            sectors[line.buffer] += line.sectors
        wavefronts += line.wavefronts
    return sectors, wavefronts


def table(ladder: Ladder, rungs: Sequence[Rung], dtype: str, dims: Dims) -> str:
    """One row for each rung, one column for each array that is accessed, as Markdown."""
    counted = {rung.id: count(ladder, rung, dtype, dims) for rung in rungs}
    known = [arg.name for arg in ladder.op.args]
    arrays = [name for name in known if any(sectors[name] for sectors, _ in counted.values())]
    arrays += sorted({name for sectors, _ in counted.values() for name in sectors} - {*known})
    titles = ["all sectors", *(f"`{name}`" for name in arrays)]
    shared = any(wavefronts for _, wavefronts in counted.values())
    if shared:
        titles.append("wavefronts")
    rows = [f"| rung | {' | '.join(titles)} |", "|---|" + "--:|" * len(titles)]
    for rung in rungs:
        sectors, wavefronts = counted[rung.id]
        total = sectors.total()
        cells = [f"{rung.id}: {rung.idea}", f"{total:,}"]
        for name in arrays:
            share = f"{sectors[name]:,} ({sectors[name] / total:.0%})"
            cells.append(share if sectors[name] else "")
        if shared:
            cells.append(f"{wavefronts:,}" if wavefronts else "")
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def beside_least(op: Op, report: Report, dims: Dims) -> str:
    """What a kernel asked of each array, and the least that any kernel could: each sector once.

    The least of shared memory is that of the same requests without bank conflicts. All float32.
    """
    rows: list[tuple[str, int, int]] = []
    for kind, verb, roles in (
        ("read", "read from", ("in",)),
        ("write", "write to", ("out",)),
        ("atomic", "add to", ("inout",)),
    ):
        for arg in op.args:
            own = [x for x in report.lines if (x.buffer, x.kind) == (arg.name, kind)]
            if arg.role in roles or own:
                dtype = resolve_dtype(arg.dtype, np.dtype(np.float32))
                size = math.prod(arg.resolve_shape(dims)) * dtype.itemsize
                least = -(-size // SECTOR) if arg.role in roles else 0
                rows.append((f"{verb} {arg.name}, sectors", sum(x.sectors for x in own), least))
    shared = [line for line in report.lines if line.space == "shared"]
    if shared:
        passes = sum(line.wavefronts for line in shared), sum(x.ideal_wavefronts for x in shared)
        rows.append(("shared memory, wavefronts", *passes))
    head = f"counted at {format_dims(dims)}"
    wide = max(len(head), *(len(name) for name, _, _ in rows)) + 2
    lines = [f"{head:{wide}}{'yours':>8}{'least':>8}"]
    return "\n".join(lines + [f"{name:{wide}}{n:8,}{least:8,}" for name, n, least in rows])
