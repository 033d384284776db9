"""A register tile as an outer product: the factors that a thread loads, and the sums they serve."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find
from ladder.core.show.pictures.banks import requests
from ladder.core.show.pictures.drawing import MARGIN, WIDTH, Drawing
from ladder.core.show.pictures.runs import default_dtype, emulated_plan
from ladder.core.show.pictures.tiles import owners
from ladder.core.show.source_code import parse_shape

PANEL = 196.0  # width of the block's tile
STRIP = 9.0  # of the row of shared memory beside it


@dataclass(frozen=True)
class Outer:
    """What one thread of block 0 does for the first channel.

    rows, columns  of the block's tile, whose factors it loads, in order; from `names`, two arrays
                   in shared memory
    mine           (TILE, TILE) the outputs that it writes
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    names: tuple[str, str]
    mine: np.ndarray


def outer(
    op: str, rung: str, dtype: str, shape: str, rows: str, columns: str, thread: int
) -> Outer:
    """From the requests that the emulator records. `rows`, `columns`: text of the lines that load
    the factors. Raises LadderError where the rung has no constants EACH and TILE."""
    dims = parse_shape(find(op).op, shape)
    constants = emulated_plan(find(op).rung(rung), dtype, dims).constants
    if not {"EACH", "TILE"} <= set(constants):
        raise LadderError(f"picture outer: {op} {rung} defines no EACH and TILE")
    each, tile = constants["EACH"], constants["TILE"]
    loads, names = [], []
    for text in (rows, columns):
        found = [
            access
            for access in requests(op, rung, dtype, shape, text)
            if access.block == (0, 0, 0) and access.warp == thread // 32 and access.kind == "read"
        ][:each]
        if not found:
            raise LadderError(f"picture outer: {op} {rung} reads nothing in lines with {text!r}")
        lane = found[0].lanes.index(thread % 32)
        loads.append(tuple(access.offsets[lane] // found[0].bytes for access in found))
        names.append(found[0].buffer)
    who = owners(op, rung, dtype, shape, find(op).op.args[0].name)
    mine = (who.block == 0) & (who.warp == thread // 32) & (who.lane == thread % 32)
    return Outer(loads[0], loads[1], (names[0], names[1]), mine[:tile, :tile])


def draw(
    op: str, rung: str, *, rows: str, columns: str, thread: str = "0", dtype: str = "",
    shape: str = "",
) -> Drawing:  # fmt: skip
    """The block's tile with the thread's outputs, and the outer product that fills them."""
    dtype = dtype or default_dtype(op, rung)
    seen = outer(op, rung, dtype, shape, rows, columns, int(thread))
    count, tile = len(seen.rows), len(seen.mine)
    loads, sums = count + len(seen.columns), count * len(seen.columns)
    a, b = seen.names
    drawing = Drawing(
        f"{op}, {find(op).rung(rung).name}: the outer product of thread {thread}",
        f"For each channel k, thread {thread} loads {count} factors from row k of {a} and "
        f"{len(seen.columns)} from row k of {b}, in shared memory. It multiplies each with each, "
        f"and adds the products to {sums} accumulators: {loads} loads for {sums} multiply-adds. "
        f"Its outputs are in rows {_list(seen.rows)} and columns {_list(seen.columns)} of the "
        f"block's {tile} x {tile}.",
    )
    y, x = drawing.top + 4, MARGIN + STRIP + 22.0
    drawing.text(MARGIN, y + 6, f"Block 0: {tile} x {tile} outputs", bold=True)
    drawing.text(x + 16, y + 24, f"{b}[k]", 12, mono=True)
    top, cell = y + 30 + STRIP + 6, PANEL / tile
    drawing.box(x, y + 30, PANEL, STRIP, "panel", "line", 0.5)
    drawing.box(x - STRIP - 6, top, STRIP, PANEL, "panel", "line", 0.5)
    drawing.text(MARGIN, y + 24, f"{a}[k]", 12, mono=True)
    drawing.box(x, top, PANEL, PANEL, "panel", "line", 0.5)
    for column in seen.columns:
        drawing.box(x + column * cell, y + 30, max(cell, 3), STRIP, "orange")
    for row in seen.rows:
        drawing.box(x - STRIP - 6, top + row * cell, STRIP, max(cell, 3), "blue")
    for row, column in zip(*np.nonzero(seen.mine), strict=True):
        drawing.box(x + column * cell, top + row * cell, max(cell, 3), max(cell, 3), "green")

    left = x + PANEL + 22
    drawing.text(left, y + 6, f"Thread {thread}: sums[i][j]", bold=True)
    drawing.text(left + 42, y + 47, f"{a} × {b}", 12, "end", "muted", mono=True)
    head, wide = 46.0, (WIDTH - MARGIN - left - 46) / len(seen.columns)
    high = (PANEL + STRIP + 6 - 22) / count
    for j, column in enumerate(seen.columns):
        at = left + head + j * wide
        drawing.box(
            at, y + 30, wide, 22, "pale orange", "paper", 1.5, f"bs[{j}] = {b}[k][{column}]"
        )
        drawing.text(at + wide / 2, y + 45, str(column), 10, "middle")
    for i, row in enumerate(seen.rows):
        at = y + 52 + i * high
        drawing.box(left, at, head, high, "pale blue", "paper", 1.5, f"as[{i}] = {a}[k][{row}]")
        drawing.text(left + head / 2, at + high / 2 + 4, str(row), 10, "middle")
        for j, column in enumerate(seen.columns):
            title = f"sums[{i}][{j}] += {a}[k][{row}] * {b}[k][{column}]"
            place = left + head + j * wide
            drawing.box(place, at, wide, high, "pale green", "paper", 1.5, title)
            drawing.text(place + wide / 2, at + high / 2 + 4, f"{i},{j}", 10, "middle")
    y = drawing.bottom + 22
    x = float(MARGIN)
    for text, fill in (
        (f"{count} loads", "blue"),
        (f"{len(seen.columns)} loads", "orange"),
        (f"{sums} sums in registers", "green"),
    ):
        drawing.box(x, y - 11, 13, 13, fill, "line")
        drawing.text(x + 18, y, text, 12)
        x += 34 + 6.6 * len(text)
    drawing.paragraph(MARGIN, y + 22, drawing.description, size=12, colour="muted")
    return drawing


def _list(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers[:-1])) + f" and {numbers[-1]}"
