"""Fragments of AMD's matrix cores: which lane holds which element, of MFMA and of WMMA.

The layouts are those that ladder/include/hip says; the tests compare them with its CPU twins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.show.pictures.drawing import MARGIN, WIDTH, Drawing
from ladder.core.show.pictures.palette import distinct, text_on


@dataclass(frozen=True)
class Layout:
    """One instruction: D (side, side) += A (side, deep) * B (side, deep)^T, by `lanes` lanes.

    part  neighbours of a row of A, and of B, that one lane holds
    run   elements of D that are neighbours of a column, and that one lane holds
    step  rows from one of them to the next
    """

    title: str
    lanes: int
    side: int
    deep: int
    part: int
    run: int
    step: int = 1

    def factors(self, lane: int) -> list[tuple[int, int]]:
        """Row and k of each element of A, or of B, that a lane holds."""
        row, group = lane % self.side, lane // self.side
        return [(row, (group * self.part + i) % self.deep) for i in range(self.part)]

    def sums(self, lane: int) -> list[tuple[int, int]]:
        """Row and column of each element of D that a lane holds."""
        column, group, groups = lane % self.side, lane // self.side, self.lanes // self.side
        if self.step > 1:  # the groups take the rows in turn
            rows = [self.step * i + group for i in range(self.side // groups)]
        else:
            rows = [
                first + group * self.run + i
                for first in range(0, self.side, groups * self.run)
                for i in range(self.run)
            ]
        return [(row, column) for row in rows]


LAYOUTS: Mapping[str, Layout] = {
    "mfma-16": Layout("v_mfma_f32_16x16x16 (CDNA)", 64, 16, 16, 4, 4),
    "mfma-32": Layout("v_mfma_f32_32x32x8 (CDNA)", 64, 32, 8, 4, 4),
    "wmma-rdna3": Layout("v_wmma_f32_16x16x16 (RDNA 3)", 32, 16, 16, 16, 1, 2),
    "wmma-rdna4": Layout("v_wmma_f32_16x16x16 (RDNA 4)", 32, 16, 16, 8, 8),
}


def draw(instruction: str = "mfma-16") -> Drawing:
    """A and D of one instruction: the lane and the element of each place."""
    if instruction not in LAYOUTS:
        raise LadderError(
            f"no instruction is named {instruction!r}; there are {', '.join(LAYOUTS)}"
        )
    of = LAYOUTS[instruction]
    lanes_a = _owners(of, of.deep, of.factors)
    lanes_d = _owners(of, of.side, of.sums)
    both = " (lanes 16 to 31 hold the same as lanes 0 to 15)" if of.part == of.deep else ""
    drawing = Drawing(
        f"{of.title}: which lane holds which element",
        f"D ({of.side} x {of.side}) += A ({of.side} x {of.deep}) times the transpose of B, which "
        f"lies as A does. In each cell stands the lane. A lane holds {of.part} neighbours of one "
        f"row of A{both}, and {len(of.sums(0))} elements of one column of D: lane 0 those of rows "
        f"{', '.join(str(row) for row, _ in of.sums(0))}.",
    )
    cell = (WIDTH - 2 * MARGIN) / of.side
    y = _matrix(drawing, of, drawing.top, "A: rows × k", lanes_a, cell)
    _matrix(drawing, of, y + 26, "D: rows × columns", lanes_d, cell)
    return drawing


def _owners(of: Layout, width: int, held: Callable[[int], list[tuple[int, int]]]) -> np.ndarray:
    lanes = np.full((of.side, width), -1)
    for lane in reversed(range(of.lanes)):  # the first of those that hold the same is shown
        for place in held(lane):
            lanes[place] = lane
    return lanes


def _matrix(
    drawing: Drawing, of: Layout, y: float, name: str, lanes: np.ndarray, cell: float
) -> float:
    """A matrix with the lane of each element; where it ends."""
    drawing.text(MARGIN, y, name, bold=True)
    height = 0.62 * cell
    for (row, column), lane in np.ndenumerate(lanes):
        fill = distinct(int(lane), of.lanes)
        left, top = MARGIN + column * cell, y + 8 + row * height
        drawing.box(left, top, cell, height, fill, "paper", 0.8, f"({row}, {column}): lane {lane}")
        size = 0.38 * cell if of.side == 16 else 8
        drawing.text(left + cell / 2, top + 0.72 * height, str(lane), size, "middle", text_on(fill))
    return y + 8 + len(lanes) * height
