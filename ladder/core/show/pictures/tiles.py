"""Which thread writes which element of the result: the grid, a block, a warp, a thread."""

from dataclasses import dataclass

import numpy as np

from ladder.core.common.errors import LadderError
from ladder.core.contract.ladder import find
from ladder.core.contract.op import DTYPES, resolve_dtype
from ladder.core.show.pictures.drawing import MARGIN, WIDTH, Drawing, distinct
from ladder.core.show.pictures.runs import counted, default_dtype, emulated_plan
from ladder.core.show.source_code import parse_shape

GAP = 24  # between panels
SIDE = (WIDTH - 2 * MARGIN - GAP) / 2  # of a panel
ZOOM = 32  # rows and columns of a tile that show its lanes
LEAST = 4.0  # pixels of a mark that stands alone


@dataclass(frozen=True)
class Owners:
    """Who writes each element of the result, a matrix: arrays of its shape, -1 where nobody does.

    block   number of the block in the grid, x fastest
    warp    of the block
    lane    of the warp
    writes  how often the element is written
    """

    block: np.ndarray
    warp: np.ndarray
    lane: np.ndarray
    writes: np.ndarray


def owners(op: str, rung: str, dtype: str, shape: str, buffer: str) -> Owners:
    """From the writes that the emulator records in one run of the rung."""
    contract = find(op).op
    (arg,) = (arg for arg in contract.args if arg.name == buffer)
    *outer, columns = arg.resolve_shape(parse_shape(find(op).op, shape))
    rows, size = int(np.prod(outer)), resolve_dtype(arg.dtype, DTYPES[dtype]).itemsize
    block, warp, lane = (np.full(rows * columns, -1) for _ in range(3))
    writes = np.zeros(rows * columns, int)
    plan = emulated_plan(find(op).rung(rung), dtype, parse_shape(find(op).op, shape))
    across, down, _ = plan.launches[-1].grid
    for access in counted(op, rung, dtype, shape).accesses:
        if access.buffer != buffer or access.kind != "write":
            continue
        x, y, z = access.block
        for i in range(access.bytes // size):
            at = np.array(access.offsets) // size + i
            block[at], warp[at] = x + across * (y + down * z), access.warp
            lane[at] = access.lanes
            writes[at] += 1
    shaped = (array.reshape(rows, columns) for array in (block, warp, lane, writes))
    return Owners(*shaped)


def draw(op: str, rung: str, *, buffer: str = "out", dtype: str = "", shape: str = "") -> Drawing:
    """Four panels: the result by block, one block's tile by warp, by lane, and a thread's part."""
    dtype = dtype or default_dtype(op, rung)
    who = owners(op, rung, dtype, shape, buffer)
    if (who.writes == 0).any():
        raise LadderError(
            f"picture tiles: {op} {rung} writes parts of {buffer} by TMA, which names no thread"
        )
    rows, columns = who.block.shape
    found = find(op).rung(rung)
    tile = _bounds(who.block == 0)
    top, left, high, wide = tile
    warps = who.warp[top : top + high, left : left + wide]
    lanes = who.lane[top : top + high, left : left + wide]
    inside = who.block[top : top + high, left : left + wide] == 0
    of_warp = inside & (warps == 0)
    of_thread = of_warp & (lanes == 0)
    blocks, warp_count = who.block.max() + 1, warps[inside].max() + 1
    warp_high, warp_wide = _bounds(of_warp)[2:]
    drawing = Drawing(
        f"{op}, {found.name}: who writes which element of {buffer}",
        f"{buffer} has {rows} x {columns} elements, written by {_count(blocks, 'block')}. Block 0 "
        f"writes a tile of {high} x {wide}, with {_count(warp_count, 'warp')}. Warp 0 writes "
        f"{of_warp.sum()} of them, in an area of {warp_high} x {warp_wide}. Thread 0 writes "
        f"{of_thread.sum()}.",
    )
    y = drawing.top
    y = _row(
        drawing,
        y,
        (f"Grid: {_count(blocks, 'block')}", f"{rows} x {columns} elements", who.block, blocks),
        (
            f"Block 0: {_count(warp_count, 'warp')}",
            f"{high} x {wide} elements",
            _only(inside, warps),
            warps.max() + 1,
        ),
    )
    corner, own = np.s_[:ZOOM, :ZOOM], _count(of_thread.sum(), "element")
    _row(
        drawing,
        y,
        ("Warp 0: 32 lanes", _part(lanes[corner], lanes), _only(of_warp, lanes)[corner], 32),
        ("Thread 0", f"{own} of the tile", _only(of_thread, lanes), 32),
    )
    return drawing


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _only(mask: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    return np.where(mask, numbers, -1)


def _part(corner: np.ndarray, tile: np.ndarray) -> str:
    """What a panel shows of a tile."""
    high, wide = corner.shape
    return (
        f"the first {high} x {wide}" if corner.shape != tile.shape else f"{high} x {wide} elements"
    )


def _row(drawing: Drawing, y: float, *panels: tuple[str, str, np.ndarray, int]) -> float:
    """Panels side by side: two lines of text and a raster by number; where the next row begins."""
    for place, (name, size, numbers, count) in enumerate(panels):
        x = MARGIN + place * (SIDE + GAP)
        drawing.text(x, y, name, bold=True)
        drawing.text(x, y + 17, size, 12, colour="muted")
        cell = min(SIDE / numbers.shape[1], SIDE / numbers.shape[0])
        high, wide = (cell * n for n in numbers.shape)
        drawing.box(x, y + 25, wide, high, "panel", "line")
        colours = [["" if n < 0 else distinct(int(n), count) for n in row] for row in numbers]
        if cell < LEAST and (numbers >= 0).mean() < 0.05:  # dots, else too small to be seen
            for r, c in zip(*np.nonzero(numbers >= 0), strict=True):
                drawing.box(x + c * cell, y + 25 + r * cell, LEAST, LEAST, colours[r][c])
        else:
            drawing.cells(x, y + 25, cell, colours)
    return drawing.bottom + 28


def _bounds(mask: np.ndarray) -> tuple[int, int, int, int]:
    """The smallest rectangle around what is true: top, left, height, width."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    high, wide = rows[-1] - rows[0] + 1, columns[-1] - columns[0] + 1
    return int(rows[0]), int(columns[0]), int(high), int(wide)
