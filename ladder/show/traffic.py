"""How many sectors of each array the rungs of a ladder move, counted by the emulator.

A rung that stores an intermediate result pays for it in sectors; so does one that loads the same
elements over and over. Beside each other, the columns tell which of the two it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ladder.contract.dims import Dims
from ladder.contract.ladder import Ladder
from ladder.contract.rung_file import Rung
from ladder.show import trace


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
    """One row for each rung, one column for each array, as Markdown."""
    counted = {rung.id: count(ladder, rung, dtype, dims) for rung in rungs}
    known = [arg.name for arg in ladder.op.args]
    arrays = [name for name in known if any(sectors[name] for sectors, _ in counted.values())]
    arrays += sorted({name for sectors, _ in counted.values() for name in sectors} - {*known})
    rows = [
        f"| rung | all sectors | {' | '.join(f'`{name}`' for name in arrays)} | wavefronts |",
        "|---|--:|" + "--:|" * len(arrays) + "--:|",
    ]
    for rung in rungs:
        sectors, wavefronts = counted[rung.id]
        total = sectors.total()
        cells = [f"{rung.id}: {rung.idea}", f"{total:,}"]
        for name in arrays:
            share = f"{sectors[name]:,} ({sectors[name] / total:.0%})"
            cells.append(share if sectors[name] else "")
        cells.append(f"{wavefronts:,}" if wavefronts else "")
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)
