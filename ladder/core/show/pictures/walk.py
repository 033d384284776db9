"""How a block walks: which elements of its factors it loads in each step, frame by frame."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract.dtypes import DTYPES
from ladder.core.contract.ladder import find
from ladder.core.show.pictures.drawing import MARGIN, WIDTH, Drawing
from ladder.core.show.pictures.runs import counted, default_dtype, emulated_plan
from ladder.core.show.pictures.tiles import owners
from ladder.core.show.source_code import parse_shape

ACROSS = 2  # frames side by side
GAP = 20  # between frames, and for the names within one
INNER = 8  # between the matrices of a frame


@dataclass(frozen=True)
class Walk:
    """What one block does, for out = left @ right.T.

    left, right  the step in which each element is loaded for the first time; -1 where it never is
    out          whether the block writes the element
    repeats      how many elements the block loads more than once
    names        of out, left and right
    """

    left: np.ndarray
    right: np.ndarray
    out: np.ndarray
    repeats: int
    names: tuple[str, str, str]


def walk(op: str, rung: str, dtype: str, shape: str, block: int, steps: int) -> Walk:
    """From the loads that the emulator records. In every step, each warp has the same number of
    requests. Raises LadderError where that does not hold."""
    dims = parse_shape(find(op).op, shape)
    contract, chosen = find(op).op, find(op).rung(rung)
    result, left, right = (arg for arg in contract.args if len(arg.resolve_shape(dims)) == 2)
    across = emulated_plan(chosen, dtype, dims).launches[-1].grid[0]
    place = (block % across, block // across, 0)
    found, repeats = [], 0
    for arg in (left, right):
        rows, columns = arg.resolve_shape(dims)
        loads = np.zeros(rows * columns, int)
        when = np.full(rows * columns, -1)
        by_warp: dict[int, list[np.ndarray]] = {}
        for access in counted(op, rung, dtype, shape).accesses:
            if access.buffer == arg.name and access.block == place:
                first = np.array(access.offsets) // DTYPES[dtype].itemsize
                each = np.arange(access.bytes // DTYPES[dtype].itemsize)
                elements = (first[:, None] + each).ravel()
                by_warp.setdefault(access.warp, []).append(elements)
        for requests in by_warp.values():
            if len(requests) % steps:
                raise LadderError(
                    f"picture walk: {op} {rung} loads {arg.name} with {len(requests)} requests of "
                    f"a warp, which is no multiple of {steps} steps"
                )
            for number, elements in enumerate(requests):
                new = elements[when[elements] < 0]
                when[new] = number * steps // len(requests)
                np.add.at(loads, elements, 1)
        repeats += int((loads > 1).sum())
        found.append(when.reshape(rows, columns))
    written = owners(op, rung, dtype, shape, result.name).block == block
    names = (result.name, left.name, right.name)
    return Walk(found[0], found[1], written, repeats, names)


def draw(
    op: str, rung: str, *, steps: str, block: str = "0", dtype: str = "", shape: str = ""
) -> Drawing:
    """A frame for each step: the left factor, the right one on its side above the result."""
    dtype, count = dtype or default_dtype(op, rung), int(steps)
    seen = walk(op, rung, dtype, shape, int(block), count)
    name, left, right = seen.names
    sizes = [int((seen.left == 0).sum()), int((seen.right == 0).sum())]
    drawing = Drawing(
        f"{op}, {find(op).rung(rung).name}: how block {block} walks",
        f"{name} = {left} @ {right}.T, in {count} steps. In each step, block {block} loads "
        f"{sizes[0]} elements of {left} and {sizes[1]} of {right}, one tile further along the "
        f"summed dimension than in the step before, and adds their products to its "
        f"{seen.out.sum()} elements of {name}. It loads {seen.repeats} elements more than once.",
    )
    y = drawing.paragraph(
        MARGIN, drawing.top, f"Dark: loaded in this step. Pale: loaded before. {right} lies on its "
        f"side above {name}, so that a row of {left} and a column above meet at their output.",
        size=12, colour="muted",
    )  # fmt: skip
    (rows, summed), columns = seen.left.shape, seen.right.shape[0]
    wide = (WIDTH - 2 * MARGIN - (ACROSS - 1) * GAP) / ACROSS
    cell = (wide - INNER) / (summed + columns)
    high = (summed + rows) * cell + INNER + 48
    for step in range(count):
        x = MARGIN + step % ACROSS * (wide + GAP)
        top = y + 8 + step // ACROSS * high
        _frame(drawing, x, top, cell, seen, step)
    return drawing


def _frame(drawing: Drawing, x: float, y: float, cell: float, seen: Walk, step: int) -> None:
    """One step: the right factor above the result, the left one beside it."""
    summed = seen.left.shape[1]
    middle, low = x + summed * cell + INNER, y + 16 + summed * cell + INNER
    out, left, right = seen.names
    drawing.text(x, y + 12, f"step {step + 1}", bold=True)
    panels = (
        (x, low, left, _shades(seen.left, step, "blue", "pale blue")),
        (middle, y + 16, f"{right}.T", _shades(seen.right.T, step, "orange", "pale orange")),
        (middle, low, out, [["green" if own else "" for own in row] for row in seen.out]),
    )
    for at, top, label, colours in panels:
        wide, high = cell * len(colours[0]), cell * len(colours)
        drawing.box(at, top, wide, high, "panel", "line")
        drawing.cells(at, top, cell, colours)
        place = top + high + 14 if top == low else top - 4
        drawing.text(at + wide / 2, place, label, 11, "middle", mono=True)


def _shades(when: np.ndarray, step: int, now: str, before: str) -> list[list[str]]:
    """The colour of each element in the frame of a step; "" where it is not loaded yet."""
    return [[now if at == step else before if 0 <= at < step else "" for at in row] for row in when]
