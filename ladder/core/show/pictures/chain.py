"""Two products in a row: where the first one leaves its result, and where the second one wants its
left factor.

Both layouts come from the CPU twins of the instructions (probes.py).
"""

from __future__ import annotations

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.show.pictures import probes
from ladder.core.show.pictures.drawing import MARGIN, WIDTH, Drawing
from ladder.core.show.pictures.fragments import owners
from ladder.core.show.pictures.palette import distinct, text_on

CELL, LOW = 15.0, 15.0  # width and height of an element
GAP = WIDTH - 2 * MARGIN - 32 * CELL  # between two matrices


def result(instruction: str) -> tuple[np.ndarray, np.ndarray]:
    """The lane and the accumulator of each element of a result (16, 16): two neighbouring D of
    `mma.sync`, numbered one after the other, or the first 16 columns of warp 0 of `wgmma`."""
    if instruction == "mma":
        lanes, registers = owners(probes.mma_fragments().d, (16, 8), 1)
        return np.hstack([lanes, lanes]), np.hstack([registers, registers + 4])
    found = probes.warpgroup()
    threads, registers = np.full((64, 64), -1), np.full((64, 64), -1)
    thread, register = np.indices(found.row.shape)
    threads[found.row, found.column] = thread
    registers[found.row, found.column] = register
    return threads[:16, :16], registers[:16, :16]


def left_factor(instruction: str) -> tuple[np.ndarray, np.ndarray]:
    """The lane and the half register of each element of A (16, 16) that is taken from registers."""
    if instruction == "mma":
        return owners(probes.mma_fragments().a, (16, 16), 1)
    threads, halves = probes.register_operand()
    return threads[:16], halves[:16]


def draw(instruction: str = "mma") -> Drawing:
    """The result of q @ k.T beside the left factor of p @ v.

    instruction  mma, or wgmma
    """
    (had, accumulator), (wanted, half) = (
        find(_known(instruction)) for find in (result, left_factor)
    )
    same = int((had == wanted).sum())
    in_place = bool((had == wanted).all() and (accumulator == half).all())
    drawing = Drawing(
        f"{'mma.sync' if instruction == 'mma' else 'wgmma'}: a result is the next left factor",
        f"16 queries and 16 keys of a warp; in each cell stands the lane that holds it. Left: the "
        "scores, as q @ k.T leaves them in accumulators. Right: p, as p @ v takes it from "
        f"registers, two elements in each. In {same} of {had.size} places the lane is the same"
        + (", and element i of its A is its accumulator i." if in_place else ".")
        + " So a lane rounds each pair of accumulators and packs them into one register; no value "
        "goes to another lane.",
    )
    y = drawing.top
    _lanes(drawing, MARGIN, y, "scores, accumulators: query × key", had)
    _lanes(drawing, MARGIN + 16 * CELL + GAP, y, "p, left factor: query × key", wanted)
    y = drawing.bottom + 24
    where = [np.flatnonzero((half == i).ravel() & (wanted == 0).ravel())[0] for i in range(8)]
    held = accumulator.ravel()[where]
    drawing.box(MARGIN, y - 12, 52, 17, distinct(0, 32))
    drawing.text(MARGIN + 26, y + 1, "lane 0", 11, "middle", text_on(distinct(0, 32)))
    text = "   ".join(f"a{i // 2} = (d{held[i]}, d{held[i + 1]})" for i in range(0, 8, 2))
    drawing.text(MARGIN + 62, y + 1, text, 11, mono=True)
    y += 20
    drawing.paragraph(MARGIN, y + 8, drawing.description, size=12, colour="muted")
    return drawing


def draw_transposed(instruction: str = "mma") -> Drawing:
    """The left factor of probs.T @ dout, beside what q @ k.T and k @ q.T leave.

    instruction  mma, or wgmma
    """
    had, _ = result(_known(instruction))
    wanted, _ = left_factor(instruction)
    straight, turned = (int((found == wanted).sum()) for found in (had.T, had))
    drawing = Drawing(
        "probs.T as a left factor: which product leaves it in the right lanes",
        "16 keys (rows) and 16 queries (columns) of a warp; in each cell stands the lane. Above: "
        "the lanes that must hold probs.T for dv = probs.T @ dout. Below, what two products leave: "
        f"q @ k.T has the right lane in {straight} of {had.size} places (coloured), k @ q.T in "
        f"{turned}. So the kernel for dk and dv computes k @ q.T, and its tiles come out "
        "transposed. The kernel for dq needs dscores @ k, with queries as rows, and computes "
        "q @ k.T.",
    )
    y = drawing.top
    _lanes(drawing, MARGIN + 8 * CELL + GAP / 2, y, "wanted: key × query", wanted)
    y = drawing.bottom + 24
    _lanes(drawing, MARGIN, y, f"q @ k.T, transposed: {straight} of {had.size}", had.T, wanted)
    right = MARGIN + 16 * CELL + GAP
    _lanes(drawing, right, y, f"k @ q.T: {turned} of {had.size}", had, wanted)
    drawing.paragraph(MARGIN, drawing.bottom + 22, drawing.description, size=12, colour="muted")
    return drawing


def _known(instruction: str) -> str:
    if instruction not in ("mma", "wgmma"):
        raise LadderError(f"picture chain: the instruction is mma or wgmma, not {instruction}")
    return instruction


def _lanes(
    drawing: Drawing, x: float, y: float, name: str, lanes: np.ndarray,
    wanted: np.ndarray | None = None,
) -> None:  # fmt: skip
    """A matrix with the lane of each element; coloured where it is the one that is wanted."""
    drawing.text(x, y, name, 12, bold=True)
    for (row, column), lane in np.ndenumerate(lanes):
        right = wanted is None or wanted[row, column] == lane
        fill = distinct(int(lane), 32) if right else "panel"
        left, top = x + column * CELL, y + 8 + row * LOW
        drawing.box(left, top, CELL, LOW, fill, "paper", 0.6, f"({row}, {column}): lane {lane}")
        ink = text_on(fill) if right else "muted"
        drawing.text(left + CELL / 2, top + 11, str(lane), 9, "middle", ink)
