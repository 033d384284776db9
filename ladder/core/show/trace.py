"""Which lane touches which address: the memory accesses of a rung, counted by the emulator.

    report = trace(find("layernorm.forward"), rung)
    table(report, rung)

A warp's access to global memory is served in sectors of 32 bytes. Lanes that touch neighbouring
addresses share sectors; lanes that touch addresses far apart need one each, of which most bytes
are moved for nothing. The counts need no GPU, and do not depend on one.
"""

import contextlib
import dataclasses
import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich.table import Table
from rich.text import Text

from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import Ladder
from ladder.core.contract.op import DTYPES, Dims, Op, format_dims
from ladder.core.contract.rung_file import Rung
from ladder.core.emulator.emulated import Emulated
from ladder.core.emulator.kernel import KernelError
from ladder.core.emulator.report import SECTOR, Access, LineCount, Report
from ladder.core.show import source_code
from ladder.core.show.tables import markdown
from ladder.core.verify.inputs import run_on

ALL = 1 << 20  # requests of a line that are kept in full
WAVEFRONT = 128  # bytes: 32 banks of 4
COLUMNS = ("access", "bytes", "requests", "lanes", "takes", "ideal")  # of an access in tables


def trace(
    ladder: Ladder,
    rung: Rung,
    dtype: str = "float32",
    dims: Dims | None = None,
    warp: Literal[32, 64] = 32,
    keep: int = 8,
) -> Report:
    """Run a rung once in the emulator's counting mode.

    keep  how many requests of each line the report holds in full

    Raises LadderError where it cannot run, or does something that it must not.
    """
    if rung.path is None:
        raise LadderError(f"{ladder.op.name} {rung.label} is no kernel: there is nothing to trace")
    device = Emulated(warp=warp, counting=True, trace=keep)
    run_on(device, ladder, rung, dtype, dims or source_code.small_shape(ladder.op))
    return device.report()


def own_lines(report: Report, rung: Rung) -> list[LineCount]:
    """The counts of the rung's own file, in the order of its lines."""
    counts = [count for count in report.lines if is_of(count, rung)]
    return sorted(counts, key=lambda count: (count.line, count.space, count.buffer, count.kind))


def is_of(seen: LineCount | Access, rung: Rung) -> bool:
    """Whether something was seen in the rung's own file, not in one that it includes."""
    return rung.path is not None and Path(seen.file).name == rung.path.name


def table(report: Report, rung: Rung) -> Table:
    """One row for each line and buffer: what a request takes, and the least that it could."""
    result = Table(box=None, pad_edge=False)
    for name in ("line", "source", *COLUMNS):
        right = name not in ("source", "access")
        result.add_column(name, justify="right" if right else "left", no_wrap=True)
    source = rung.source.splitlines()
    for count in own_lines(report, rung):
        text, (cells, over) = source[count.line - 1].strip(), row(count)
        short = Text(text if len(text) <= 60 else text[:59] + "…")
        result.add_row(str(count.line), short, *cells, style="red" if over else None)
    return result


def row(count: LineCount) -> tuple[list[str], bool]:
    """What stands below COLUMNS, and whether a request takes much more than it could."""
    takes, ideal, unit = per_request(count)
    access = f"{count.kind} {count.buffer}" + (" (shared)" if count.space == "shared" else "")
    lanes = f"{count.lanes / count.requests:.0f}"
    counts = str(count.bytes), f"{count.requests:,}", lanes, f"{takes:.1f} {unit}", f"{ideal:.1f}"
    return [access, *counts], takes > 1.5 * ideal


def per_request(count: LineCount) -> tuple[float, float, str]:
    """Sectors (global) or wavefronts (shared) that a request takes, the ideal, and the unit."""
    if count.space == "global":
        return count.sectors / count.requests, count.ideal_sectors / count.requests, "sectors"
    wavefronts, ideal = count.wavefronts, count.ideal_wavefronts
    return wavefronts / count.requests, ideal / count.requests, "wavefronts"


# ---- what pictures ask of the emulator, beside a trace ------------------------------------------


def recorded(
    ladder: Ladder,
    rung: Rung,
    macros: str,
    dtype: str,
    dims: Dims,
    wrong: bool = False,
) -> list[list[str]]:
    """The words of each line that begins with "@" in what a copy of a rung prints, below whose
    includes stand macros. Lines keep their numbers.

    wrong  a kernel that does something wrong is recorded, too, as far as it gets
    """
    lines = rung.source.splitlines()
    first = 1 + max((i for i, line in enumerate(lines) if line.startswith("#include")), default=-1)
    source = "\n".join([*lines[:first], macros, f"#line {first + 1}", *lines[first:], ""])
    copy, printed = dataclasses.replace(rung, source=source), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.suppress(*[KernelError] * wrong):
        run_on(Emulated(), ladder, copy, dtype, dims)
    words = (line.split() for line in printed.getvalue().splitlines())
    return [line[1:] for line in words if line[:1] == ["@"]]


def default_dtype(rung: Rung) -> str:
    """float32 where a rung takes it, else bfloat16."""
    target = Emulated().target
    others = (name for name in ("float32", "bfloat16") if rung.claims(target(DTYPES[name])))
    return next(others, "float32")


# ---- how many sectors of each array rungs move, and how often they use what they load -----------


def traffic_table(ladder: Ladder, rungs: Sequence[Rung], dtype: str, dims: Dims) -> str:
    """Sectors of global memory, reads and writes: one row for each rung, one column for each array
    that is accessed; and wavefronts of shared memory. As Markdown.

    A rung that stores an intermediate result pays for it in sectors; so does one that loads the
    same elements over and over. `reuse_table` beside it tells which of the two it is.

    Copies by TMA are not counted. Raises LadderError where a rung cannot run.
    """
    sectors: dict[str, Counter[str]] = {rung.id: Counter() for rung in rungs}
    wavefronts: Counter[str] = Counter()
    for rung in rungs:
        for line in trace(ladder, rung, dtype, dims).lines:
            if line.space == "global":
                sectors[rung.id][line.buffer] += line.sectors
            wavefronts[rung.id] += line.wavefronts
    used = {name for counted in sectors.values() for name in counted if counted[name]}
    known = [arg.name for arg in ladder.op.args if arg.name in used]
    arrays = [*known, *sorted(used - {*known})]
    titles = ["all sectors", *(f"`{name}`" for name in arrays)]
    titles += ["wavefronts"] * any(wavefronts.values())
    rows = []
    for rung in rungs:
        counted, total = sectors[rung.id], sectors[rung.id].total()
        cells = [f"{rung.id}: {rung.idea}", f"{total:,}"]
        for name in arrays:
            share = f"{counted[name]:,} ({counted[name] / total:.0%})"
            cells.append(share if counted[name] else "")
        if any(wavefronts.values()):
            cells.append(f"{wavefronts[rung.id]:,}" if wavefronts[rung.id] else "")
        rows.append(cells)
    of = f"{format_dims(dims)}, {dtype}; reads and writes, counted by the emulator."
    return f"{markdown(['rung', *titles], rows)}\n\n{of}"


def reuse_table(
    ladder: Ladder, rungs: Sequence[Rung], dtype: str, dims: Dims, warp: Literal[32, 64] = 32
) -> str:
    """How often each rung uses what it loads: one row for each, as Markdown.

    Every level of memory has its own arithmetic intensity: the FLOPs that each byte serves which
    comes from it. A kernel is as fast as the slowest level allows. Sectors count as a whole, and
    a wavefront as the bytes that shared memory could have moved in it.
    """
    titles = ["rung", "load instructions per multiply-add"]
    titles += ["FLOPs per byte from global memory and caches", "FLOPs per byte of shared memory"]
    rows, flops = [], ladder.op.flops(dims)
    for rung in rungs:
        lines = own_lines(trace(ladder, rung, dtype, dims, warp), rung)
        reads = [line for line in lines if line.kind == "read"]
        loads = sum(line.requests for line in reads) / (flops / 2 / warp)
        sectors = sum(line.sectors for line in reads if line.space == "global")
        wavefronts = sum(line.wavefronts for line in lines if line.space == "shared")
        shared = f"{flops / (WAVEFRONT * wavefronts):.2f}" if wavefronts else ""
        far = f"{flops / (SECTOR * sectors):.2f}"
        rows.append([f"{rung.id}: {rung.idea}", f"{loads:#.2g}", far, shared])
    lanes = "" if warp == 32 else f", warps of {warp}"
    of = f"{format_dims(dims)}, {dtype}{lanes}"
    return f"{markdown(titles, rows)}\n\n{of}; counted by the emulator, which has no caches."


def beside_least(op: Op, report: Report, dims: Dims, real: str = "float32", host: str = "") -> str:
    """What a kernel asked of each array, and the least that any kernel could: each sector once.

    The least of shared memory is that of the same requests without bank conflicts.
    """
    rows: list[tuple[str, int, int]] = []
    for kind, verb, roles in (
        ("read", "read from", ("in",)),
        ("write", "write to", ("out",)),
        ("atomic", "add to", ("inout",)),
    ):
        for arg in op.args:
            own = [x for x in report.lines if (x.buffer, x.kind) == (arg.name, kind)]
            if host and not own:  # its kernels may have other names for it
                continue
            if arg.role in roles or own:
                least = -(-arg.nbytes(dims, DTYPES[real]) // SECTOR) if arg.role in roles else 0
                rows.append((f"{verb} {arg.name}, sectors", sum(x.sectors for x in own), least))
    shared = [line for line in report.lines if line.space == "shared"]
    if shared:
        passes = sum(line.wavefronts for line in shared), sum(x.ideal_wavefronts for x in shared)
        rows.append(("shared memory, wavefronts", *passes))
    head = f"counted at {format_dims(dims)}"
    wide = max(len(head), *(len(name) for name, _, _ in rows)) + 2
    lines = [f"{head:{wide}}{'yours':>8}{'least':>8}"]
    return "\n".join(lines + [f"{name:{wide}}{n:8,}{least:8,}" for name, n, least in rows])
