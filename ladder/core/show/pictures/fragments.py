"""Fragments: which lane holds which element, of `mma.sync` and of `wgmma`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.show.pictures import probes
from ladder.core.show.pictures.drawing import MARGIN, WIDTH, Drawing
from ladder.core.show.pictures.palette import distinct, text_on

CELL = 30.0  # width of an element
LOW = 21.0  # height of an element


def draw(*, lane: str = "") -> Drawing:
    """A, B and D of `mma.sync` m16n8k16: the lane and the register of every element.

    lane  only this one's elements have a colour
    """
    found = probes.mma_fragments()
    only = _lane(lane)
    drawing = Drawing(
        "mma.sync m16n8k16: "
        + ("which lane holds which element" if only is None else f"what lane {only} holds"),
        "D (16 x 8) += A (16 x 16) times B (16 x 8). In each cell stand the lane and its register. "
        "A lane holds 8 elements of A in 4 registers, two neighbours in each; 4 of B in 2 "
        f"registers; and 4 of D. Lane {only or 0} holds "
        + "; ".join(
            f"of {name} {_places(numbers[only or 0], wide, flip)}"
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
    y = (
        _matrix(drawing, MARGIN, y, "A, from ldmatrix: rows × k", lanes_a, registers_a, "a", only)
        + 26
    )
    lanes_b, registers_b = owners(found.b, (8, 16), 2)
    _matrix(drawing, MARGIN, y, "B: k × columns", lanes_b.T, registers_b.T, "b", only)
    lanes_d, registers_d = owners(found.d, (16, 8), 1)
    _matrix(drawing, MARGIN + 8.5 * CELL, y, "D: rows × columns", lanes_d, registers_d, "d", only)
    return drawing


def draw_tf32(*, lane: str = "") -> Drawing:
    """A, B and D of `mma.sync` m16n8k8 on TF32: the lane and the register of every element.

    lane  only this one's elements have a colour
    """
    found, only = probes.tf32_fragments(), _lane(lane)
    drawing = Drawing(
        "mma.sync m16n8k8 on TF32: "
        + ("which lane holds which element" if only is None else f"what lane {only} holds"),
        "D (16 x 8) += A (16 x 8) times B (8 x 8). In each cell stand the lane and its register. "
        f"Each register has one element. Lane {only or 0} holds of A "
        f"{_places(found.a[only or 0], 8, False)}; of B {_places(found.b[only or 0], 8, True)}; "
        f"of D {_places(found.d[only or 0], 8, False)}.",
    )
    y, right = drawing.top, MARGIN + 8.5 * CELL
    matrix = owners(found.a, (16, 8), 1)
    _matrix(drawing, MARGIN, y, "A, from ldmatrix: rows × k", *matrix, "a", only)
    lanes, registers = owners(found.b, (8, 8), 1)
    y = _matrix(drawing, right, y, "B: k × columns", lanes.T, registers.T, "b", only)
    lanes, registers = owners(found.d, (16, 8), 1)
    _matrix(drawing, right, y + 26, "D: rows × columns", lanes, registers, "d", only)
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
    letter: str, only: int | None = None,
) -> float:  # fmt: skip
    """A matrix with the lane and the register of each element; where it ends. `only`: the lane
    whose elements have a colour, None for all."""
    drawing.text(x, y, name, bold=True)
    for (row, column), lane in np.ndenumerate(lanes):
        coloured = only in (None, int(lane))
        fill = distinct(int(lane), 32) if coloured else "panel"
        ink = text_on(fill) if coloured else "muted"
        left, top = x + column * CELL, y + 8 + row * LOW
        register = f"{letter}{registers[row, column]}"
        title = f"({row}, {column}): lane {lane}, {register}"
        drawing.box(left, top, CELL, LOW, fill, "paper", 0.8, title)
        drawing.text(left + 3, top + 14.5, str(lane), 11, colour=ink)
        drawing.text(left + CELL - 3, top + 14.5, register, 9, "end", ink)
    return y + 8 + len(lanes) * LOW


def _lane(text: str) -> int | None:
    """The number of a lane, None for ""."""
    if not text:
        return None
    if not text.isdecimal() or int(text) > 31:
        raise LadderError(f"a lane is a number from 0 to 31, not {text}")
    return int(text)


def draw_ldmatrix(*, lane: str = "") -> Drawing:
    """One `ldmatrix` of four 8 x 8 matrices: the lane that passes the address of each row, and the
    lane and register that receive each element.

    lane  only the row whose address it passes and the elements that it receives have a colour
    """
    only, (senders, lanes, registers) = _lane(lane), ldmatrix()
    shown = only or 0
    row, half = (int(place[0]) for place in np.nonzero(senders == shown))
    drawing = Drawing(
        "ldmatrix.x4: who passes an address, and who receives the elements",
        "Four 8 x 8 matrices of 16-bit elements, here the quarters of a 16 x 16 tile. Each lane "
        "passes the address of one row of one quarter, 16 bytes. Each lane receives two neighbours "
        f"of every quarter, in one register. Lane {shown} passes the address of row {row}, "
        f"elements {8 * half} to {8 * half + 7}, and receives "
        + ", ".join(f"({r}, {c})" for r, c in zip(*np.nonzero(lanes == shown), strict=True))
        + ".",
    )
    y, side, gap = drawing.top, 48.0, 12.0
    cell = (WIDTH - 2 * MARGIN - 2 * side - 2 * gap) / 16
    drawing.text(MARGIN, y, "address from", 12, colour="muted")
    drawing.text(WIDTH - MARGIN, y, "address from", 12, "end", "muted")
    drawing.text(WIDTH / 2, y, "received by: lane and register", 12, "middle", "muted")
    y += 10
    for row in range(16):
        top = y + row * LOW + (row // 8) * gap
        for half, left in ((0, MARGIN + 0.0), (1, WIDTH - MARGIN - side)):
            sender = int(senders[row, half])
            coloured = only in (None, sender)
            fill = "pale blue" if coloured else "panel"
            drawing.box(left, top, side, LOW, fill, "paper", 1, f"lane {sender} passes the address")
            ink = "ink" if coloured else "muted"
            drawing.text(left + side / 2, top + 14.5, f"lane {sender}", 11, "middle", ink)
        for column in range(16):
            owner = int(lanes[row, column])
            coloured = only in (None, owner)
            fill = distinct(owner, 32) if coloured else "panel"
            ink = text_on(fill) if coloured else "muted"
            left = MARGIN + side + gap / 2 + column * cell + (column // 8) * gap
            drawing.box(left, top, cell, LOW, fill, "paper", 0.8, f"({row}, {column}): {owner}")
            drawing.text(left + 2, top + 14.5, str(owner), 9.5, colour=ink)
            register = f"r{registers[row, column]}"
            drawing.text(left + cell - 1, top + 14.5, register, 7.5, "end", ink)
    drawing.paragraph(MARGIN, drawing.bottom + 20, drawing.description, size=12, colour="muted")
    return drawing


def ldmatrix() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Who passes the address of each row of 8 elements (16, 2), and the lane and the register that
    receive each element (16, 16)."""
    found = probes.mma_fragments()
    senders = np.full((16, 2), -1)
    for lane, offset in enumerate(found.addresses):
        senders[offset // 32, offset % 32 // 16] = lane
    return senders, *owners(found.a, (16, 16), 2)


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
