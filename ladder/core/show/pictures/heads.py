"""In which order the blocks of attention take the heads, and what is read before one returns."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ladder.core.contract.dtypes import DTYPES
from ladder.core.contract.ladder import find
from ladder.core.show.pictures.drawing import MARGIN, WIDTH, Drawing
from ladder.core.show.pictures.palette import distinct
from ladder.core.show.pictures.places import heads_in_order
from ladder.core.show.source_code import parse_shape

COLOURS = 24  # shades of the order
HIGH = 112.0  # of a map, in pixels


@dataclass(frozen=True)
class Order:
    """The order in which the blocks of a kernel start.

    number   for each tile (rows) of each head (columns): the number of its block
    between  how many other heads have a block between two blocks of the same head, at most
    """

    number: np.ndarray
    between: int


def order_of(places: Sequence[tuple[int, ...]]) -> Order:
    """From (first token, head) of each block, as `heads_in_order` gives them."""
    firsts = sorted({first for first, _ in places})
    number = np.full((len(firsts), 1 + max(head for _, head in places)), -1)
    visits: dict[int, list[int]] = {}
    for i, (first, head) in enumerate(places):
        number[firsts.index(first), head] = i
        visits.setdefault(head, []).append(i)
    between = 0
    for numbers in visits.values():
        for start, end in itertools.pairwise(numbers):
            between = max(between, len({head for _, head in places[start + 1 : end]}))
    return Order(number, between)


def draw(
    op: str, *rungs: str, shape: str, kernel: str = "", dtype: str = "bfloat16"
) -> Drawing:  # fmt: skip
    """A map for each rung: a column for each head, a row for each tile of tokens.

    kernel  where a rung has several; by default the op's own
    """
    dims = parse_shape(find(op).op, shape)
    name = kernel or op.replace(".", "_")
    pair = 2 * dims["T"] * dims["C"] // dims["NH"] * DTYPES[dtype].itemsize / 1e6
    panels = []
    for rung in rungs:
        found = order_of(heads_in_order(op, rung, dtype, dims, name))
        text = (
            f"{find(op).rung(rung).name}: between two blocks of a head, blocks of "
            f"{found.between} other heads start, with {found.between * pair:,.0f} MB"
        )
        panels.append((text, found))
    drawing = Drawing(
        f"{op}: in which order the blocks of {dims['B'] * dims['NH']} heads start",
        f"{shape}. A block goes through two matrices of its head, {pair:.2g} MB. "
        + ". ".join(text for text, _ in panels) + ".",
    )  # fmt: skip
    y = drawing.top
    for text, found in panels:
        y = drawing.paragraph(MARGIN, y, text, size=12)
        high, wide = found.number.shape
        count = found.number.max() + 1
        colours = [
            [distinct(2 * int(COLOURS * n / count), 2 * COLOURS) if n >= 0 else "" for n in row]
            for row in found.number
        ]
        x0 = MARGIN + 46
        cell = (WIDTH - MARGIN - x0) / wide
        drawing.text(x0 - 6, y + 4, "tile 0", 11, "end", "muted")
        drawing.text(x0 - 6, y - 8 + HIGH, str(high - 1), 11, "end", "muted")
        drawing.cells(x0, y - 8, cell, colours, HIGH / high)
        drawing.text(x0, drawing.bottom + 13, "head 0", 11, colour="muted")
        drawing.text(WIDTH - MARGIN, drawing.bottom - 3, str(wide - 1), 11, "end", "muted")
        y = drawing.bottom + 24
    drawing.text(
        MARGIN, y, "colour: when a block starts, red first, violet last", 12, colour="muted"
    )
    return drawing
