"""Operands of `wgmma`: where TMA puts the pieces of a tile, and which of them a step reads."""

from __future__ import annotations

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.show.pictures import probes
from ladder.core.show.pictures.drawing import MARGIN, Drawing
from ladder.core.show.pictures.palette import distinct, text_on

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


def steps(major: str) -> np.ndarray:
    """By group of 8 rows of a tile and piece of 16 bytes (8, 8): the step that reads it."""
    down, right = divmod(distance(major), 128)
    found = np.full((64, 8), -1)
    for step in range(4):
        found[np.roll(read_first(major), (step * down, step * right // 16), (0, 1))] = step
    return found[::8]  # a core matrix of 8 rows is read in one step


def draw_directions(
    *, tile: str = "tile", rows: str = "row", columns: str = "column", k: str, mn: str
) -> Drawing:
    """One tile in shared memory that two products read, each in another direction.

    tile, rows, columns  what it is called, and what its rows and columns are
    k, mn                the product that reads it K-major, and the one that reads it MN-major
    """
    drawing = Drawing(
        f"{tile}: one tile, read in two directions",
        f"{tile} has 64 rows ({rows}) of 64 elements ({columns}), once in shared memory. A cell is "
        "a core matrix of 8 x 8 elements, its number the step of 16 that reads it. "
        f"{k} sums over each {columns}: a step reads 16 columns of all rows (K-major), and the "
        f"next step begins {distance('K'):,} bytes further. {mn} sums over each {rows}: a step "
        f"reads 16 whole rows (MN-major, transposed), and the next step begins "
        f"{distance('MN'):,} bytes further. A flag of the instruction says which.",
    )
    side, left = 23.0, MARGIN + 46.0
    y = drawing.top
    for number, (major, name) in enumerate((("K", k), ("MN", mn))):
        x = left + number * (8 * side + 60)
        drawing.text(x, y, f"{major}-major", 12, bold=True)
        drawing.text(x, y + 16, name, 11, mono=True)
        for place in range(0, 8, 2):
            drawing.text(x + (place + 0.5) * side, y + 34, str(8 * place), 9, "middle", "muted")
            drawing.text(x - 5, y + 40 + (place + 0.65) * side, str(8 * place), 9, "end", "muted")
        drawing.text(x - 5, y + 34, columns, 9, "end", "muted")
        drawing.text(x - 5, y + 40 + 8 * side + 8, rows, 9, "end", "muted")
        for (row, column), step in np.ndenumerate(steps(major)):
            fill = distinct(int(step), 4)
            at = x + column * side, y + 40 + row * side
            drawing.box(*at, side, side, fill, "paper")
            drawing.text(at[0] + side / 2, at[1] + 16, str(step), 11, "middle", text_on(fill))
    drawing.paragraph(MARGIN, drawing.bottom + 26, drawing.description, size=12, colour="muted")
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
