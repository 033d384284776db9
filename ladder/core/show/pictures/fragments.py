"""Fragments: which lane holds which element of `mma.sync`.

The tests compare them with what the CPU twins of `ldmatrix` and `mma.sync` do.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.show.pictures.drawing import MARGIN, Drawing, distinct, text_on

CELL = 30.0  # width of an element
LOW = 21.0  # height of an element


class Fragments(NamedTuple):
    """The element that each lane has in each half register: its number in the matrix.

    a  (32, 8) of A (16, 16): row * 16 + k
    b  (32, 4) of B (16, 8): column * 16 + k
    d  (32, 4) of D (16, 8): row * 8 + column
    """

    a: np.ndarray
    b: np.ndarray
    d: np.ndarray


def mma_fragments() -> Fragments:
    """Those of m16n8k16 in 16 bits."""
    lane, i = np.indices((32, 8))
    group, pair = lane // 4, lane % 4 * 2 + i % 2
    return Fragments(
        a=(group + i // 2 % 2 * 8) * 16 + pair + i // 4 * 8,
        b=(group * 16 + pair + i // 2 * 8)[:, :4],
        d=((group + i // 2 * 8) * 8 + pair)[:, :4],
    )


def draw(*, lane: str = "") -> Drawing:
    """A, B and D of `mma.sync` m16n8k16: the lane and the register of every element.

    lane  only this one's elements have a colour
    """
    mma = mma_fragments()
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
                ("A", mma.a, 16, False),
                ("B", mma.b, 16, True),
                ("D", mma.d, 8, False),
            )
        )
        + ".",
    )
    y = drawing.top
    lanes_a, registers_a = owners(mma.a, (16, 16), 2)
    y = (
        _matrix(drawing, MARGIN, y, "A, from ldmatrix: rows × k", lanes_a, registers_a, "a", only)
        + 26
    )
    lanes_b, registers_b = owners(mma.b, (8, 16), 2)
    _matrix(drawing, MARGIN, y, "B: k × columns", lanes_b.T, registers_b.T, "b", only)
    lanes_d, registers_d = owners(mma.d, (16, 8), 1)
    _matrix(drawing, MARGIN + 8.5 * CELL, y, "D: rows × columns", lanes_d, registers_d, "d", only)
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
