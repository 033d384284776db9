"""How many sectors of each array the rungs of a ladder move, and how often they use what they load,
counted by the emulator.

A rung that stores an intermediate result pays for it in sectors; so does one that loads the same
elements over and over. Beside each other, the columns tell which of the two it is.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import numpy as np

from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import Dims, Op, format_dims, resolve_dtype
from ladder.core.contract.rung_file import Rung
from ladder.core.emulator.report import SECTOR, Report
from ladder.core.show import trace

WAVEFRONT = 128  # bytes: 32 banks of 4


def traffic_table(ladder: Ladder, rungs: Sequence[Rung], dtype: str, dims: Dims) -> str:
    """Sectors of global memory, reads and writes: one row for each rung, one column for each array
    that is accessed; and wavefronts of shared memory. As Markdown.

    Copies by TMA are not counted. Raises LadderError where a rung cannot run.
    """
    sectors: dict[str, Counter[str]] = {rung.id: Counter() for rung in rungs}
    wavefronts: Counter[str] = Counter()
    for rung in rungs:
        for line in trace.trace(ladder, rung, dtype, dims).lines:
            if line.space == "global":
                sectors[rung.id][line.buffer] += line.sectors
            wavefronts[rung.id] += line.wavefronts
    used = {name for counted in sectors.values() for name in counted if counted[name]}
    known = [arg.name for arg in ladder.op.args if arg.name in used]
    arrays = [*known, *sorted(used - {*known})]
    titles = ["all sectors", *(f"`{name}`" for name in arrays)]
    titles += ["wavefronts"] * any(wavefronts.values())
    rows = [f"| rung | {' | '.join(titles)} |", "|---|" + "--:|" * len(titles)]
    for rung in rungs:
        counted, total = sectors[rung.id], sectors[rung.id].total()
        cells = [f"{rung.id}: {rung.idea}", f"{total:,}"]
        for name in arrays:
            share = f"{counted[name]:,} ({counted[name] / total:.0%})"
            cells.append(share if counted[name] else "")
        if any(wavefronts.values()):
            cells.append(f"{wavefronts[rung.id]:,}" if wavefronts[rung.id] else "")
        rows.append("| " + " | ".join(cells) + " |")
    rows += ["", f"{format_dims(dims)}, {dtype}; reads and writes, counted by the emulator."]
    return "\n".join(rows)


def reuse_table(
    ladder: Ladder, rungs: Sequence[Rung], dtype: str, dims: Dims, warp: Literal[32, 64] = 32
) -> str:
    """How often each rung uses what it loads: one row for each, as Markdown.

    Every level of memory has its own arithmetic intensity: the FLOPs that each byte serves which
    comes from it. A kernel is as fast as the slowest level allows. Sectors count as a whole, and
    a wavefront as the bytes that shared memory could have moved in it.
    """
    rows = [
        "| rung | load instructions per multiply-add "
        "| FLOPs per byte from global memory and caches | FLOPs per byte of shared memory |",
        "|---|--:|--:|--:|",
    ]
    flops = ladder.op.flops(dims)
    for rung in rungs:
        lines = trace.own_lines(trace.trace(ladder, rung, dtype, dims, warp), rung)
        reads = [line for line in lines if line.kind == "read"]
        loads = sum(line.requests for line in reads) / (flops / 2 / warp)
        sectors = sum(line.sectors for line in reads if line.space == "global")
        wavefronts = sum(line.wavefronts for line in lines if line.space == "shared")
        shared = f"{flops / (WAVEFRONT * wavefronts):.2f}" if wavefronts else ""
        rows.append(
            f"| {rung.id}: {rung.idea} | {loads:#.2g} | {flops / (SECTOR * sectors):.2f} "
            f"| {shared} |"
        )
    lanes = "" if warp == 32 else f", warps of {warp}"
    of = f"{format_dims(dims)}, {dtype}{lanes}"
    return "\n".join([*rows, "", f"{of}; counted by the emulator, which has no caches."])


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
