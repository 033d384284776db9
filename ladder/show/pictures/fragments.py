"""Fragments: which lane holds which element, of `mma.sync` and of `wgmma`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ladder.show.pictures import probes
from ladder.show.pictures.drawing import MARGIN, Drawing
from ladder.show.pictures.palette import distinct, text_on

CELL = 30.0  # width of an element
LOW = 21.0  # height of an element


def draw() -> Drawing:
    """A, B and D of `mma.sync` m16n8k16: the lane and the register of every element."""
    found = probes.mma_fragments()
    drawing = Drawing(
        "mma.sync m16n8k16: which lane holds which element",
        "D (16 x 8) += A (16 x 16) times B (16 x 8). In each cell stand the lane and its register. "
        "A lane holds 8 elements of A in 4 registers, two neighbours in each; 4 of B in 2 "
        "registers; and 4 of D. Lane 0 holds "
        + "; ".join(
            f"of {name} {_places(numbers[0], wide, flip)}"
            for name, numbers, wide, flip in (
                ("A", found.a, 16, False),
                ("B", found.b, 16, True),
                ("D", found.d, 8, False),
            )
        )
        + ".",
    )
    y = drawing.top
    lanes_a, registers_a = owners(found.a, (16, 16), 2)
    y = _matrix(drawing, MARGIN, y, "A, from ldmatrix: rows × k", lanes_a, registers_a, "a") + 26
    lanes_b, registers_b = owners(found.b, (8, 16), 2)
    _matrix(drawing, MARGIN, y, "B: k × columns", lanes_b.T, registers_b.T, "b")
    lanes_d, registers_d = owners(found.d, (16, 8), 1)
    _matrix(drawing, MARGIN + 8.5 * CELL, y, "D: rows × columns", lanes_d, registers_d, "d")
    return drawing


def owners(
    numbers: np.ndarray, shape: tuple[int, int], share: int
) -> tuple[np.ndarray, np.ndarray]:
    """The lane and the register of each element of a matrix; `share` elements have a register.

    numbers  (lanes, elements) of the matrix, as Fragments has them
    """
    lanes, registers = np.full(shape, -1), np.full(shape, -1)
    lane, element = np.indices(numbers.shape)
    lanes.flat[numbers.ravel()] = lane.ravel()
    registers.flat[numbers.ravel()] = element.ravel() // share
    return lanes, registers


def _places(numbers: Sequence[int], wide: int, flip: bool) -> str:
    pairs = (divmod(int(number), wide) for number in numbers)
    return ", ".join(f"({y}, {x})" if flip else f"({x}, {y})" for x, y in pairs)


def _matrix(
    drawing: Drawing, x: float, y: float, name: str, lanes: np.ndarray, registers: np.ndarray,
    letter: str,
) -> float:  # fmt: skip
    drawing.text(x, y, name, bold=True)
    for (row, column), lane in np.ndenumerate(lanes):
        fill, left, top = distinct(int(lane), 32), x + column * CELL, y + 8 + row * LOW
        register = f"{letter}{registers[row, column]}"
        title = f"({row}, {column}): lane {lane}, {register}"
        drawing.box(left, top, CELL, LOW, fill, "paper", 0.8, title)
        drawing.text(left + 3, top + 14.5, str(lane), 11, colour=text_on(fill))
        drawing.text(left + CELL - 3, top + 14.5, register, 9, "end", text_on(fill))
    return y + 8 + len(lanes) * LOW


def draw_accumulator() -> Drawing:
    """The accumulators of `wgmma` m64n64k16 by warp, and the first 16 columns of warp 0 by lane."""
    found = probes.warpgroup()
    threads = np.full((64, 64), -1)
    registers = np.full((64, 64), -1)
    thread, register = np.indices(found.row.shape)
    threads[found.row, found.column] = thread
    registers[found.row, found.column] = register
    drawing = Drawing(
        "wgmma m64n64k16: which thread holds which accumulator",
        "The result has 64 rows. Each of the 4 warps of a warpgroup holds 16 of them, all columns. "
        "Within a warp, lanes are arranged as in D of mma.sync, and the pattern repeats every 8 "
        "columns in the next 4 registers. In each cell stand the lane and its register.",
    )
    y = drawing.top
    drawing.text(MARGIN, y, "64 rows × 64 columns, by warp", bold=True)
    for warp in range(4):
        rows = np.flatnonzero((threads // 32 == warp).any(1))
        top = y + 8 + rows[0] * 1.8
        drawing.box(MARGIN, top, 16 * CELL, len(rows) * 1.8, distinct(2 * warp, 8), "paper")
        text = f"warp {warp}: rows {rows[0]} to {rows[-1]}"
        drawing.text(MARGIN + 8, top + 19, text, 12, colour=text_on(distinct(2 * warp, 8)))
    y = drawing.bottom + 24
    corner = np.s_[:16, :16]
    name = "Warp 0, columns 0 to 15"
    _matrix(drawing, MARGIN, y, name, threads[corner], registers[corner], "d")
    return drawing


def draw_operand() -> Drawing:
    """Where TMA puts the 16-byte pieces of 8 rows of a tile, and what a step of `wgmma` reads."""
    tile = probes.warpgroup().tile
    pieces = tile[:8].reshape(8, 8, 8)[:, :, 0]  # the first element of each 16 bytes
    rows, columns = pieces // 64, pieces % 64 // 8
    drawing = Drawing(
        "wgmma operand: a tile of 128-byte rows in shared memory, 128-byte swizzle",
        "A row of 64 elements of 16 bits is 8 pieces of 16 bytes; each piece fills 4 banks. "
        + " ".join(
            f"Row {row} has its pieces in the order {' '.join(map(str, columns[row]))}."
            for row in range(8)
        )
        + " So the same piece of all 8 rows lies in 32 different banks.",
    )
    y = drawing.top
    wide, high = 25.0, 24.0
    right = MARGIN + 9.5 * wide
    for x, name in ((MARGIN, "the matrix"), (right, "in shared memory")):
        drawing.text(x, y, name, bold=True)
    y += 8
    for row in range(8):
        for place in range(8):
            top = y + row * high
            for x, piece in ((MARGIN, place), (right, int(columns[row, place]))):
                fill = distinct(piece, 8)
                drawing.box(x + place * wide, top, wide, high, fill, "paper")
                drawing.text(
                    x + (place + 0.5) * wide, top + 16, str(piece), 12, "middle", text_on(fill)
                )
        drawing.text(right + 8 * wide + 4, y + row * high + 16, f"r = {int(rows[row, 0])}", 11)
    y = drawing.bottom + 16
    drawing.text(right, y, "banks 0–3, 4–7, … 28–31", 11, colour="muted")
    drawing.box(MARGIN + 1, drawing.top + 9, 2 * wide - 2, 8 * high - 2, "none", "ink", 2)
    drawing.paragraph(
        MARGIN,
        y + 22,
        "Framed: a step of k = 16 of a K-major operand, two pieces of each row. Every column of "
        "shared memory, 4 banks wide, has each piece once: 8 rows of one piece are read without "
        "bank conflicts. In an MN-major operand a row is one k, and a step reads 16 whole rows.",
        size=12,
    )
    return drawing
