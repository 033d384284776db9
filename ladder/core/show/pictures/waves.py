"""Tiles over SMs in waves, and in which order tiles are started: what a wave reads."""

from __future__ import annotations

from dataclasses import dataclass

from ladder.core.contract.ladder import find
from ladder.core.show.pictures.drawing import MARGIN, WIDTH, Drawing
from ladder.core.show.pictures.palette import distinct
from ladder.core.show.pictures.places import SMS, plan_on_gpu, tiles_in_order
from ladder.core.show.source_code import parse_shape


@dataclass(frozen=True)
class Waves:
    """How many tiles there are, and how many run at a time; both count blocks."""

    tiles: int
    places: int

    @property
    def waves(self) -> int:
        return -(-self.tiles // self.places)

    @property
    def last(self) -> int:
        """Tiles of the last wave."""
        return self.tiles - (self.waves - 1) * self.places

    @property
    def efficiency(self) -> float:
        """The share of all places in all waves that has a tile."""
        return self.tiles / (self.waves * self.places)


def waves(op: str, rung: str, dtype: str, shape: str, sms: int) -> Waves:
    """From the launch plan: the tiles of a persistent kernel, or the blocks of the grid."""
    plan = plan_on_gpu(find(op).rung(rung), dtype, parse_shape(find(op).op, shape), sms)
    x, y, z = plan.launches[0].grid
    return Waves(plan.constants.get("TILES", x * y * z), sms)


def draw_waves(
    op: str, rung: str, *, shape: str, dtype: str = "bfloat16", sms: str = str(SMS)
) -> Drawing:
    """A column for each SM, a row for each wave."""
    found = waves(op, rung, dtype, shape, int(sms))
    idle = found.places - found.last
    drawing = Drawing(
        f"{op}, {find(op).rung(rung).name}: {found.tiles} tiles on {found.places} SMs",
        f"{shape}: with one tile on each SM at a time, {found.tiles} tiles take {found.waves} "
        f"waves. The last wave has {found.last} tiles, and {idle} SMs are idle in it. "
        f"{found.efficiency:.0%} of all places have a tile.",
    )
    y = drawing.paragraph(MARGIN, drawing.top, drawing.description, size=12) + 2
    x0, cell = MARGIN + 56, (WIDTH - 2 * MARGIN - 56) / found.places
    drawing.text(x0, y, "SM 0", 11, colour="muted")
    drawing.text(WIDTH - MARGIN, y, f"SM {found.places - 1}", 11, "end", "muted")
    high = max(8, min(26, 260 // found.waves))
    for wave in range(found.waves):
        top = y + 8 + wave * high
        if wave in (0, found.waves - 1) or high >= 14:
            drawing.text(x0 - 6, top + high * 0.7, f"wave {wave + 1}", 11, "end", "muted")
        busy = found.last if wave == found.waves - 1 else found.places
        for sm in range(found.places):
            fill = "blue" if sm < busy else "pale red"
            drawing.box(x0 + sm * cell, top, cell, high - 2, fill, "paper", 0.6)
    y = drawing.bottom + 20
    drawing.box(MARGIN, y - 10, 12, 12, "blue")
    drawing.text(MARGIN + 18, y, "a tile", 12)
    drawing.box(MARGIN + 80, y - 10, 12, 12, "pale red")
    drawing.text(MARGIN + 98, y, "idle: waits for the slowest SM", 12)
    return drawing


@dataclass(frozen=True)
class Reads:
    """What the tiles that run at a time read: rows and columns of tiles, each of them once."""

    tiles: tuple[tuple[int, int], ...]  # (row, column), counted in tiles
    rows: int
    columns: int


def of_wave(order: list[tuple[int, ...]], places: int, wave: int) -> Reads:
    """The tiles of one wave in an order that `tiles_in_order` gives."""
    highs, wides = (sorted({place[i] for place in order}) for i in (0, 1))
    part = order[wave * places : (wave + 1) * places]
    tiles = tuple((highs.index(row), wides.index(column)) for row, column in part)
    return Reads(tiles, len({row for row, _ in tiles}), len({column for _, column in tiles}))


def draw_rasterization(
    op: str, *rungs: str, shape: str, dtype: str = "bfloat16", sms: str = str(SMS), wave: str = "0"
) -> Drawing:
    """The tiles of the result, and those of one wave coloured in the order in which they start."""
    dims, parts, panels = parse_shape(find(op).op, shape), [], []
    for rung in rungs:
        order = tiles_in_order(op, rung, dtype, dims, int(sms))
        reads = of_wave(order, int(sms), int(wave))
        size = [len({place[i] for place in order}) for i in (0, 1)]
        text = (
            f"{find(op).rung(rung).name}: {len(reads.tiles)} tiles in {reads.rows} rows and "
            f"{reads.columns} columns read {reads.rows + reads.columns} strips of the operands"
        )
        parts.append(text)
        panels.append((text, reads, size))
    drawing = Drawing(
        f"{op}: wave {int(wave) + 1} of tiles on {sms} SMs",
        f"{shape}. " + ". ".join(parts) + ".",
    )
    y = drawing.top
    for text, reads, (high, wide) in panels:
        y = drawing.paragraph(MARGIN, y, text, size=12)
        cell = min((WIDTH - 2 * MARGIN) / wide, 12)
        drawing.box(MARGIN, y - 8, wide * cell, high * cell, "panel", "line")
        colours = [[""] * wide for _ in range(high)]
        for number, (row, column) in enumerate(reads.tiles):
            colours[row][column] = distinct(2 * number, 2 * len(reads.tiles))
        drawing.cells(MARGIN, y - 8, cell, colours)
        y = drawing.bottom + 24
    drawing.text(MARGIN, y, "colour: the order, red first, violet last", 12, colour="muted")
    return drawing
