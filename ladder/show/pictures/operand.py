"""Operands of `wgmma`: where TMA puts the pieces of a tile, and which of them a step reads."""

from __future__ import annotations

import numpy as np

from ladder.common.errors import LadderError
from ladder.show.pictures import probes
from ladder.show.pictures.drawing import MARGIN, Drawing
from ladder.show.pictures.palette import distinct, text_on

WIDE, HIGH = 26.0, 17.0  # of a piece
SHOWN = 18  # rows: two more than a step of an MN-major operand reads


def read_first(major: str) -> np.ndarray:
    """By row of a tile and piece of 16 bytes (64, 8): whether the first step of 16 k reads it."""
    found = probes.operand(major == "MN")
    step = np.zeros((64, 8), bool)
    step[found.row, found.column // 8] = True
    return step


def distance(major: str) -> int:
    """Bytes from the first element of a step to that of the next one, 16 k further."""
    row, column = (part[0] for part in probes.operand(major == "MN"))  # of m = 0, by k
    return int(16 * (128 * (row[1] - row[0]) + 2 * (column[1] - column[0])))


def draw(major: str = "K") -> Drawing:
    """A tile as TMA leaves it in shared memory, and what a step of `wgmma` reads of it.

    major  "K": a row of the tile is one m, and holds 64 k. "MN" (transposed): a row is one k
    """
    if major not in ("K", "MN"):
        raise LadderError(f"picture wgmma-operand: major is K or MN, not {major}")
    step = read_first(major)
    row, along = ("m", "k") if major == "K" else ("k", "m")
    drawing = Drawing(
        f"wgmma operand A, {major}-major: what a step of 16 k reads",
        f"A tile of 64 rows of 128 bytes. A row is one {row} and holds 64 {along}, in 8 pieces of "
        f"16 bytes. The first step reads {int(step[0].sum())} pieces of each of "
        f"{int(step.any(1).sum())} rows (coloured, a colour for each piece number); the next step "
        f"begins {distance(major):,} bytes further. In row r of shared memory, piece p lies at "
        "place p ^ r % 8, as TMA's swizzle puts it. Framed: 8 rows of one piece, 8 x 8 elements. "
        "In the tile they are below each other; in shared memory they are in 8 different places, "
        "which are all 32 banks once: no bank conflict.",
    )
    y = _panels(drawing, step, row, along) + 16
    drawing.text(MARGIN + 44, y, f"… to {row} = 63", 10, colour="muted")
    drawing.paragraph(MARGIN, y + 22, drawing.description, size=12)
    return drawing


def _panels(drawing: Drawing, step: np.ndarray, row: str, along: str) -> float:
    """The tile on the left, shared memory on the right; where they end."""
    lies = probes.warpgroup().tile.reshape(64, 8, 8)[:, :, 0] % 64 // 8  # piece at each place
    left, y = MARGIN + 44.0, drawing.top
    right = left + 8 * WIDE + 30
    for x, name in ((left, "the tile"), (right, "in shared memory")):
        drawing.text(x, y, name, bold=True)
    drawing.text(left - 6, y + 16, f"{along} =", 9, "end", "muted")
    drawing.text(right - 4, y + 16, "bank", 9, "end", "muted")
    for place in range(8):
        x = (place + 0.5) * WIDE
        drawing.text(left + x, y + 16, f"{8 * place}–", 9, "middle", "muted")
        drawing.text(right + x, y + 16, f"{4 * place}–", 9, "middle", "muted")
    y += 22
    for r in range(SHOWN):
        top = y + r * HIGH
        if r % 8 == 0 or r == SHOWN - 1:
            drawing.text(left - 6, top + 12, f"{row} = {r}", 10, "end", "muted")
        for place in range(8):
            for x, piece in ((left, place), (right, int(lies[r, place]))):
                _piece(drawing, x + place * WIDE, top, piece, bool(step[r, piece]))
    drawing.box(left, y, WIDE, 8 * HIGH, "none", "ink", 2)
    for r in range(8):
        x = right + int(np.flatnonzero(lies[r] == 0)[0]) * WIDE
        drawing.box(x, y + r * HIGH, WIDE, HIGH, "none", "ink", 2)
    return drawing.bottom


def _piece(drawing: Drawing, x: float, y: float, piece: int, read: bool) -> None:
    """16 bytes of a row, coloured by their number if they are read."""
    fill = distinct(piece, 8) if read else "panel"
    drawing.box(x, y, WIDE, HIGH, fill, "paper")
    colour = text_on(fill) if read else "muted"
    drawing.text(x + WIDE / 2, y + 12.5, str(piece), 11, "middle", colour)
