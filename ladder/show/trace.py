"""Which lane touches which address: the memory accesses of a rung, counted by the emulator.

    report = trace(find("layernorm.forward"), rung)
    print_lines(...), picture(...)

A warp's access to global memory is served in sectors of 32 bytes. Lanes that touch neighbouring
addresses share sectors; lanes that touch addresses far apart need one each, of which most bytes
are moved for nothing. The counts need no GPU, and do not depend on one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.table import Table
from rich.text import Text

from ladder.common.errors import LadderError
from ladder.contract.binding import bind
from ladder.contract.dims import Dims
from ladder.contract.dtypes import DTYPES, resolve_dtype
from ladder.contract.ladder import Ladder
from ladder.contract.rung_file import Rung
from ladder.emulator.emulated import Emulated
from ladder.emulator.report import SECTOR, Access, LineCount, Report
from ladder.show import source_code
from ladder.verify.inputs import make_inputs, scalars

HEIGHT = 0.42  # of a box in a picture, as part of the distance between rows


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


def run_on(device: Emulated, ladder: Ladder, rung: Rung, dtype: str, dims: Dims) -> None:
    """Run a rung once on random inputs, which are always the same."""
    op, real = ladder.op, DTYPES[dtype]
    inputs = make_inputs(op, dims, real, np.random.default_rng(0))
    arrays: dict[str, np.ndarray | None] = {}
    for arg in op.args:
        if arg.name in op.unmeasured:
            arrays[arg.name] = None
            continue
        array = device.empty(arg.resolve_shape(dims), resolve_dtype(arg.dtype, real))
        array[...] = inputs.get(arg.name, 0)
        arrays[arg.name] = array
    bind(op, rung, device, real, dims, arrays, scalars(op))()
    device.synchronize()


def own_lines(report: Report, rung: Rung) -> list[LineCount]:
    """The counts of the rung's own file, in the order of its lines."""
    counts = [count for count in report.lines if _is_of(count, rung)]
    return sorted(counts, key=lambda count: (count.line, count.space, count.buffer, count.kind))


def _is_of(seen: LineCount | Access, rung: Rung) -> bool:
    """Whether something was seen in the rung's own file, not in one that it includes."""
    return rung.path is not None and Path(seen.file).name == rung.path.name


def table(report: Report, rung: Rung) -> Table:
    """One row for each line and buffer: what a request takes, and the least that it could."""
    result = Table(box=None, pad_edge=False)
    for name in ("line", "source", "access", "bytes", "requests", "lanes", "takes", "ideal"):
        right = name not in ("source", "access")
        result.add_column(name, justify="right" if right else "left", no_wrap=True)
    source = rung.source.splitlines()
    for count in own_lines(report, rung):
        takes, ideal, unit = per_request(count)
        text = source[count.line - 1].strip()
        result.add_row(
            str(count.line),
            Text(text if len(text) <= 60 else text[:59] + "…"),
            f"{count.kind} {count.buffer}" + (" (shared)" if count.space == "shared" else ""),
            str(count.bytes),
            f"{count.requests:,}",
            f"{count.lanes / count.requests:.0f}",
            f"{takes:.1f} {unit}",
            f"{ideal:.1f}",
            style="red" if takes > 1.5 * ideal else None,
        )
    return result


def per_request(count: LineCount) -> tuple[float, float, str]:
    """Sectors (global) or wavefronts (shared) that a request takes, the ideal, and the unit."""
    if count.space == "global":
        return count.sectors / count.requests, count.ideal_sectors / count.requests, "sectors"
    wavefronts, ideal = count.wavefronts, count.ideal_wavefronts
    return wavefronts / count.requests, ideal / count.requests, "wavefronts"


# ---- pictures -----------------------------------------------------------------------------------


def picture(report: Report, rung: Rung, title: str = "", lines: Iterable[int] | None = None) -> Any:
    """What the first request of each line to global memory touches; a matplotlib figure.

    A line that reads one address for all lanes, and others of the same array, has both shown.
    Each box is a sector, moved as a whole; its coloured parts are what lanes asked for, the colour
    is the lane, and the grey rest is moved for nothing.
    """
    wanted = None if lines is None else set(lines)
    first: dict[tuple[int, str, str, bool], Access] = {}
    for access in report.accesses:
        ours = _is_of(access, rung) and access.space == "global"
        if ours and (wanted is None or access.line in wanted):
            key = (access.line, access.buffer, access.kind, _is_broadcast(access))
            first.setdefault(key, access)
    if not first:
        raise LadderError(f"{rung.label}: no access to global memory was recorded")
    rows = [first[key] for key in sorted(first)]
    return _draw(rows, rung.source.splitlines(), title)


def _draw(rows: Sequence[Access], source: Sequence[str], title: str) -> Any:
    import matplotlib
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure

    warp = 64 if max(max(access.lanes) for access in rows) >= 32 else 32
    colours = matplotlib.colormaps["turbo"]
    figure = Figure(figsize=(9, 0.9 + 0.55 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    boxes, slices, shades = [], [], []
    for place, access in enumerate(rows):
        bottom = -place
        sectors = touched_sectors(access)
        position = {sector: i + 0.35 * gaps for sector, (i, gaps) in _spread(sectors).items()}
        boxes += [_box(position[sector], 1.0, bottom) for sector in sectors]
        for lane, offset in zip(access.lanes, access.offsets, strict=True):
            start, end = offset, offset + access.bytes
            while start < end:  # an access may reach into several sectors
                sector = start // SECTOR
                stop = min(end, (sector + 1) * SECTOR)
                left = position[sector] + (start % SECTOR) / SECTOR
                slices.append(_box(left, (stop - start) / SECTOR, bottom))
                shades.append(colours(lane / (warp - 1)))
                start = stop
        axes.text(
            0,
            bottom + 0.5,
            source[access.line - 1].strip()[:80],
            fontsize=7.5,
            family="monospace",
        )
        right = max(position.values()) + 1.4
        axes.text(right, bottom + HEIGHT / 2, _describe(access), fontsize=8, va="center")
    axes.add_collection(
        PolyCollection(boxes, facecolors="#e4e4e4", edgecolors="#999999", linewidths=0.4)
    )
    axes.add_collection(
        PolyCollection(slices, facecolors=shades, edgecolors="face", linewidths=0.5)
    )
    widest = max(len(touched_sectors(access)) for access in rows)
    axes.set_xlim(-0.3, max(57, widest * 1.36 + 14))  # one scale, so that pictures compare
    axes.set_ylim(-len(rows) + 0.8, 0.9)
    axes.set_axis_off()
    axes.set_title(title, fontsize=10, loc="left")
    scale = matplotlib.cm.ScalarMappable(matplotlib.colors.Normalize(0, warp - 1), colours)
    bar = figure.colorbar(scale, ax=axes, shrink=0.8, aspect=12, ticks=[0, warp // 2, warp - 1])
    bar.set_label("lane", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    return figure


def _describe(access: Access) -> str:
    sectors = len(touched_sectors(access))
    used = {byte for offset in access.offsets for byte in range(offset, offset + access.bytes)}
    share = len(used) / (sectors * SECTOR)
    text = f"{access.kind} {access.buffer}: {sectors} sector{'s' if sectors > 1 else ''}, "
    if _is_broadcast(access):
        return text + "the same address for all lanes"
    return text + f"{share:.0%} of {'their' if sectors > 1 else 'its'} bytes used"


def _is_broadcast(access: Access) -> bool:
    """Whether several lanes have one address."""
    return len(access.lanes) > 1 and len(set(access.offsets)) == 1


def touched_sectors(access: Access) -> list[int]:
    """The sectors of one request, by their number from the start of the buffer."""
    return sorted(
        {
            sector
            for offset in access.offsets
            for sector in range(offset // SECTOR, (offset + access.bytes - 1) // SECTOR + 1)
        }
    )


def _spread(sectors: Sequence[int]) -> dict[int, tuple[int, int]]:
    """For each sector, how many are left of it, and how many gaps in the addresses."""
    gaps = np.cumsum([0, *(np.diff(sectors) > 1)])
    return {
        sector: (i, int(gap)) for i, (sector, gap) in enumerate(zip(sectors, gaps, strict=True))
    }


def _box(left: float, width: float, bottom: float) -> list[tuple[float, float]]:
    right, top = left + width, bottom + HEIGHT
    return [(left, bottom), (right, bottom), (right, top), (left, top)]
