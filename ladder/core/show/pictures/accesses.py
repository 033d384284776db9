"""Global memory, lane by lane: the sectors that one request of a warp touches.

Each box is a sector, moved as a whole; its coloured parts are what lanes asked for, the colour is
the lane, and the grey rest is not used by this request.
"""

from collections.abc import Iterable

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find
from ladder.core.contract.op import format_dims
from ladder.core.contract.rung_file import Rung
from ladder.core.emulator.report import SECTOR, Access, Report
from ladder.core.show.pictures.drawing import GLYPH, MARGIN, WIDTH, Drawing, distinct
from ladder.core.show.source_code import lines_with, parse_shape
from ladder.core.show.trace import is_of, trace

CELL, GAP = 11.3, 0.35  # width of a sector in pixels, and of a gap in the addresses in sectors
BETWEEN = 1.0  # pixels between sectors
LEAST = 1.6  # width of what a lane asked for: two bytes of a sector would be too narrow to see
HEIGHT = 15  # of a sector
CODE = 11  # size of the source line


def draw(
    op: str, rung: str, *, lines: str = "", dtype: str = "float32", shape: str = ""
) -> Drawing:
    """What the first request of each line touches; `lines`: of those that contain "x[i]|y[i]"."""
    ladder = find(op)
    chosen, dims = ladder.rung(rung), parse_shape(ladder.op, shape)
    title = f"{op}, {chosen.name}: {chosen.idea} ({format_dims(dims)}, {dtype})"
    wanted = lines_with(chosen, lines)
    return of_report(trace(ladder, chosen, dtype, dims, keep=1), chosen, title, wanted)


def of_report(
    report: Report, rung: Rung, title: str, lines: Iterable[int] | None = None
) -> Drawing:
    """The first request of each line of a rung to global memory, or of some lines only.

    A line that reads one address for all lanes, and others of the same array, has both shown.

    Raises LadderError where there is none.
    """
    wanted = None if lines is None else set(lines)
    first: dict[tuple[int, str, str, bool], Access] = {}
    for access in report.accesses:
        ours = is_of(access, rung) and access.space == "global"
        if ours and (wanted is None or access.line in wanted):
            key = (access.line, access.buffer, access.kind, _is_broadcast(access))
            first.setdefault(key, access)
    if not first:
        raise LadderError(f"{rung.label}: no access to global memory was recorded")
    rows = [first[key] for key in sorted(first)]
    texts = [describe(access) for access in rows]
    drawing = Drawing(
        title, f"Sectors that the first request of a warp touches. {'; '.join(texts)}."
    )
    source = rung.source.splitlines()
    warp = 64 if max(max(access.lanes) for access in rows) >= 32 else 32
    touched = [touched_sectors(row) for row in rows]
    widths = [len(sectors) + GAP * float((np.diff(sectors) > 1).sum()) for sectors in touched]
    cell = min(CELL, (WIDTH - 2 * MARGIN) / max(widths))
    y = drawing.top
    for access, text in zip(rows, texts, strict=True):
        most = int((WIDTH - 2 * MARGIN) / (0.62 * CODE))
        line = source[access.line - 1].strip()
        line = line if len(line) <= most else line[: most - 1] + "…"
        drawing.text(MARGIN, y + 11, line, CODE, mono=True)
        right = _sectors(drawing, access, MARGIN, y + 16, cell, warp)
        if right + 8 + GLYPH * 12 * len(text) < WIDTH - MARGIN:  # beside it
            drawing.text(right + 8, y + 28, text, 12)
            y += 42
        else:
            drawing.text(MARGIN, y + 45, text, 12)
            y += 60
    y += 14
    drawing.text(MARGIN, y, "lane 0", 11, colour="muted")
    for lane in range(warp):
        left, wide = MARGIN + 40 + lane * 192 / warp, 192 / warp
        drawing.box(left, y - 10, wide, 12, distinct(lane, warp))
    drawing.text(MARGIN + 238, y, str(warp - 1), 11, colour="muted")
    drawing.box(MARGIN + 290, y - 10, 12, 12, "line")
    drawing.text(MARGIN + 308, y, "not used by this request", 11, colour="muted")
    return drawing


def _sectors(drawing: Drawing, access: Access, x: float, y: float, cell: float, warp: int) -> float:
    """The boxes of one request; where they end."""
    sectors = touched_sectors(access)
    gaps = np.cumsum([0, *(np.diff(sectors) > 1)])
    left = {s: x + cell * (i + GAP * float(gaps[i])) for i, s in enumerate(sectors)}
    wide = cell - BETWEEN
    few = len(set(access.offsets)) <= 2 * len(sectors)
    for sector in sectors:
        drawing.box(left[sector], y, wide, HEIGHT, "line")
    for lane, offset in zip(access.lanes, access.offsets, strict=True):
        start, end = offset, offset + access.bytes
        while start < end:  # an access may reach into several sectors
            sector = start // SECTOR
            stop = min(end, (sector + 1) * SECTOR)
            at = left[sector] + wide * (start % SECTOR) / SECTOR
            part = wide * (stop - start) / SECTOR
            part = max(part, LEAST) if few else part
            drawing.box(at, y, part, HEIGHT, distinct(lane, warp), title=f"lane {lane}")
            start = stop
    return max(left.values()) + cell


def describe(access: Access) -> str:
    """How many sectors a request touches, and how much of them its lanes use."""
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
