"""TMA multicast: which block of a cluster asks for which rows, and who receives them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from ladder.core.common.errors import LadderError
from ladder.core.contract.dims import Dims
from ladder.core.contract.ladder import find
from ladder.core.contract.rung_file import Rung
from ladder.core.show.pictures.drawing import MARGIN, WIDTH, Drawing
from ladder.core.show.pictures.recording import Event, record
from ladder.core.show.pictures.runs import emulated_plan
from ladder.core.show.source_code import parse_shape

ROW_BYTES = 128  # of a tile that TMA copies
GAP = 8.0
HIGH = 34.0  # of a box
BETWEEN = 74.0  # L2 and the blocks, where the arrows are
COLOURS = (("pale blue", "blue"), ("pale orange", "orange"), ("pale green", "green"),
           ("pale purple", "purple"))  # fmt: skip


class Copy(NamedTuple):
    """One copy by TMA, of rows of an argument: L2 is read once for all receivers.

    step   of the block that asks: a stage is filled in each
    place  of the tile in the receivers' shared memory, in bytes from its start
    """

    step: int
    asks: int
    receives: tuple[int, ...]
    array: str
    row: int
    rows: int
    bytes: int
    place: int


def copies(events: Sequence[Event], rung: Rung, dtype: str, dims: Dims) -> list[Copy]:
    """All copies to shared memory in a recording of a kernel, by the blocks that ask for them."""
    boxes = {tile.argument: tile.rows for tile in emulated_plan(rung, dtype, dims).tiles}
    steps: dict[int, int] = defaultdict(lambda: -1)  # that a block has begun, with mbarrier_expect
    found = []
    for event in events:
        steps[event.block] += event.name == "expect"
        if event.name == "load":
            array = event.of.removesuffix("_tiles")
            to = [block for block in range(event.value.bit_length()) if event.value >> block & 1]
            found.append(
                Copy(steps[event.block], event.block, tuple(to or [event.block]), array,
                     event.y, boxes[array], boxes[array] * ROW_BYTES, event.tile)
            )  # fmt: skip
    return found


def draw(
    op: str, rung: str, *, shape: str, dtype: str = "bfloat16", cluster: str = "2", step: str = "0"
) -> Drawing:
    """One step of a cluster's copies: from L2, through the block that asks, to all receivers."""
    chosen, dims = find(op).rung(rung), parse_shape(find(op).op, shape)
    found = copies(record(op, rung, dtype, shape), chosen, dtype, dims)
    return of_copies(f"{op}, {chosen.name}", found, int(cluster), int(step))


def of_copies(title: str, found: Sequence[Copy], cluster: int = 2, step: int = 0) -> Drawing:
    """The same of copies that are known, of the first cluster."""
    found = [copy for copy in found if copy.asks < cluster and copy.step == step]
    if not found:
        raise LadderError(f"picture multicast: {title} copies nothing by TMA in step {step}")
    found.sort(key=lambda copy: (copy.array, copy.row, copy.asks))
    asked, received = (
        [sum(copy.bytes for copy in found if block in who(copy)) / 1024 for block in range(cluster)]
        for who in (lambda copy: (copy.asks,), lambda copy: copy.receives)
    )
    drawing = Drawing(
        f"{title}: who asks, who receives",
        " ".join(
            f"Block {copy.asks} asks for rows {copy.row} to {copy.row + copy.rows - 1} of "
            f"{copy.array}, for block{'s' * (len(copy.receives) > 1)} "
            f"{' and '.join(map(str, copy.receives))}."
            for copy in found
        )
        + f" In one step, each block asks L2 for {_sizes(asked)} KB and receives "
        f"{_sizes(received)} KB.",
    )
    top = drawing.top
    drawing.text(MARGIN, top, "L2: what the blocks ask for in one step", bold=True)
    room = WIDTH - 2 * MARGIN - GAP * (len(found) - 1)
    scale, x, starts = room / sum(copy.rows for copy in found), float(MARGIN), {}
    for copy in found:
        _box(drawing, x, top + 8, copy.rows * scale, copy)
        starts[copy] = x + copy.rows * scale / 2
        x += copy.rows * scale + GAP
    y = top + 8 + HIGH + BETWEEN
    wide = (WIDTH - 2 * MARGIN - 2 * GAP * (cluster - 1)) / cluster
    for block in range(cluster):
        own = sorted((c for c in found if block in c.receives), key=lambda copy: copy.place)
        x = MARGIN + block * (wide + 2 * GAP)
        drawing.box(x - 4, y - 6, wide + 8, HIGH + 12, "panel", COLOURS[block % 4][1], 1.6)
        for copy in own:
            part = wide * copy.rows / sum(copy.rows for copy in own)
            middle = x + part / 2
            _box(drawing, x, y, part, copy)
            ends = [(starts[copy], top + 9 + HIGH), (middle, y - 8)]
            drawing.line(ends, COLOURS[copy.asks % 4][1], 1.5, arrow=True)
            x += part
        name = f"shared memory of block {block}"
        left = MARGIN + block * (wide + 2 * GAP)
        drawing.text(left, y + HIGH + 22, name, 12, bold=True)
        text = f"asks for {asked[block]:g} KB, receives {received[block]:g} KB"
        drawing.text(left, y + HIGH + 38, text, 11, colour="muted")
    y += HIGH + 62
    x = float(MARGIN)
    for block in range(cluster):
        drawing.box(x, y - 11, 13, 13, COLOURS[block % 4][0], COLOURS[block % 4][1])
        drawing.text(x + 18, y, f"asked for by block {block}", 12)
        x += 160
    return drawing


def _box(drawing: Drawing, x: float, y: float, wide: float, copy: Copy) -> None:
    fill, edge = COLOURS[copy.asks % 4]
    last = copy.row + copy.rows - 1
    title = f"{copy.array}, rows {copy.row} to {last}: asked for by block {copy.asks}"
    drawing.box(x, y, wide, HIGH, fill, edge, 1, title)
    drawing.text(x + wide / 2, y + 14, copy.array, 11, "middle")
    drawing.text(x + wide / 2, y + 27, f"{copy.row}–{last}", 10, "middle")


def _sizes(kilobytes: Sequence[float]) -> str:
    """One number where all blocks are alike."""
    return " or ".join(f"{size:g}" for size in dict.fromkeys(kilobytes))
